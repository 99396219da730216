-- Every document of users, written by hand: what the index must hold at the end.
SELECT u.id::text, jsonb_build_object(
    'id', u.id,
    'name', u.name,
    'email', lower(trim(u.email)),
    'address', jsonb_build_object('city', u.city, 'country', u.country),
    'joined', to_char(u.joined, 'YYYY-MM-DD'),
    'visits', u.visits,
    'orders', (
        SELECT coalesce(jsonb_agg(newest.document ORDER BY newest.placed_at DESC, newest.id), '[]')
        FROM (
            SELECT o.id, o.placed_at, jsonb_build_object(
                'id', o.id,
                'status', o.status,
                'items', (
                    SELECT coalesce(jsonb_agg(jsonb_build_object(
                        'quantity', i.quantity, 'product', jsonb_build_object('name', p.name)) ORDER BY i.line), '[]')
                    FROM items i JOIN products p ON p.id = i.product_id
                    WHERE i.order_id = o.id)
            ) AS document
            FROM orders o
            WHERE o.user_id = u.id AND o.status <> 'cancelled'
            ORDER BY o.placed_at DESC, o.id
            LIMIT 5
        ) newest),
    'orderCount', (SELECT count(*) FROM orders o WHERE o.user_id = u.id),
    'lastOrderAt', (
        SELECT regexp_replace(to_char(max(o.placed_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '\.?0+$', '')
               || 'Z'
        FROM orders o WHERE o.user_id = u.id),
    'reviewCount', (SELECT count(*) FROM reviews r WHERE r.user_id = u.id)
)::text
FROM users u
WHERE u.closed_at IS NULL
