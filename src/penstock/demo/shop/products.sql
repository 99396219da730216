-- Every document of products, written by hand: what the index must hold at the end.
SELECT p.id::text, jsonb_build_object(
    'id', p.id,
    'sku', p.sku,
    'name', p.name,
    'description', p.description,
    'price', p.price,
    'stock', p.stock,
    'tags', (
        SELECT coalesce(jsonb_agg(jsonb_build_object('label', t.label) ORDER BY t.label, t.id), '[]')
        FROM tags t WHERE EXISTS (SELECT FROM product_tags pt WHERE pt.product_id = p.id AND pt.tag_id = t.id)),
    'reviews', (
        SELECT coalesce(jsonb_agg(newest.document ORDER BY newest.written_at DESC, newest.id), '[]')
        FROM (
            SELECT r.id, r.written_at, jsonb_build_object(
                'stars', r.stars,
                'body', r.body,
                'author', (SELECT jsonb_build_object('name', u.name) FROM users u WHERE u.id = r.user_id)
            ) AS document
            FROM reviews r
            WHERE r.product_id = p.id
            ORDER BY r.written_at DESC, r.id
            LIMIT 3
        ) newest),
    'reviewCount', (SELECT count(*) FROM reviews r WHERE r.product_id = p.id),
    'stars', (SELECT avg(r.stars)::float8 FROM reviews r WHERE r.product_id = p.id),
    'unitsSold', (SELECT sum(i.quantity) FROM items i WHERE i.product_id = p.id)
)::text
FROM products p
WHERE NOT p.discontinued
