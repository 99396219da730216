-- Every document of orders, written by hand: what the index must hold at the end.
SELECT o.id::text, jsonb_build_object(
    'id', o.id,
    'status', o.status,
    'placedAt', regexp_replace(to_char(o.placed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '\.?0+$', '')
                || 'Z',
    'customer', (SELECT jsonb_build_object('name', u.name, 'country', u.country) FROM users u WHERE u.id = o.user_id),
    'items', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'line', i.line,
            'quantity', i.quantity,
            'price', i.price,
            'product', (
                SELECT jsonb_build_object(
                    'sku', p.sku,
                    'name', p.name,
                    'tags', (
                        SELECT coalesce(jsonb_agg(jsonb_build_object('label', t.label) ORDER BY t.label, t.id), '[]')
                        FROM product_tags pt JOIN tags t ON t.id = pt.tag_id
                        WHERE pt.product_id = p.id))
                FROM products p WHERE p.id = i.product_id)
        ) ORDER BY i.line), '[]')
        FROM items i WHERE i.order_id = o.id),
    'pieces', (SELECT sum(i.quantity) FROM items i WHERE i.order_id = o.id)
)::text
FROM orders o
