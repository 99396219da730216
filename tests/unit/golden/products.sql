-- root: public.product by id
-- these are the keys

-- labels (junction): public.product_label by product_id
-- these are the keys

-- labels: public.label by id
SELECT DISTINCT t0."product_id"
FROM "public"."product_label" AS t0
WHERE t0."label_id" = ANY ($1::integer[]) AND t0."product_id" IS NOT NULL

-- warehouses (junction): public.stored by product_id
-- these are the keys

-- warehouses: public.warehouse by id
SELECT DISTINCT t0."product_id"
FROM "public"."stored" AS t0
WHERE t0."warehouse_id" = ANY ($1::integer[]) AND t0."product_id" IS NOT NULL

-- replaced: public.product by id
SELECT DISTINCT t0."id"
FROM "public"."product" AS t0
WHERE t0."replaces" = ANY ($1::uuid[]) AND t0."id" IS NOT NULL

-- last_line: public.line by product_id
-- these are the keys

-- by keys
SELECT t0."id", concat('{"name":', coalesce(to_json(lower(btrim(t0."name", E' \t\n\r\f\v')))::text, '"it''s unnamed"'), ',"money":{"price":', coalesce(CASE WHEN t0."price" > '-Infinity' AND t0."price" < 'Infinity' THEN t0."price"::text END, 'null'), '},"tags":', coalesce(array_to_json(t0."tags")::text, 'null'), ',"seen":', coalesce(CASE WHEN t0."seen" IS NOT NULL THEN concat('[', (SELECT string_agg(coalesce(CASE WHEN isfinite(e) THEN replace(to_json(e)::text, '+00:00', 'Z') END, 'null'), ',' ORDER BY n) FROM unnest(t0."seen") WITH ORDINALITY AS u (e, n)), ']') END, 'null'), ',"picture":', coalesce('"' || translate(encode(t0."picture", 'base64'), E'\n', '') || '"', 'null'), ',"attributes":', coalesce(t0."attributes"::text, 'null'), ',"place":', coalesce('{"lat":' || (CASE WHEN t0."lat" > '-Infinity' AND t0."lat" < 'Infinity' THEN t0."lat"::text END) || ',"lon":' || (CASE WHEN t0."lon" > '-Infinity' AND t0."lon" < 'Infinity' THEN t0."lon"::text END) || '}', 'null'), ',"spot":', coalesce('{"lat":' || (CASE WHEN (t0."spot")[1] > '-Infinity' AND (t0."spot")[1] < 'Infinity' THEN (t0."spot")[1]::text END) || ',"lon":' || (CASE WHEN (t0."spot")[0] > '-Infinity' AND (t0."spot")[0] < 'Infinity' THEN (t0."spot")[0]::text END) || '}', 'null'), ',"kind":"product","labels":', coalesce(r1.v, '[]'), ',"warehouses":', coalesce(r2.v, '[]'), ',"warehouse_ids":', concat('[', r3.a0, ']'), ',"replaced":', coalesce(r4.v, 'null'), ',"last_line":', coalesce(r5.v, 'null'), '}') AS body
FROM (SELECT "product"."name", "product"."price", "product"."tags", "product"."seen", "product"."picture", "product"."attributes", "product"."lat", "product"."lon", "product"."spot", "product"."id", "product"."replaces", true AS "is here" FROM "public"."product" WHERE "product"."id" = ANY ($1::uuid[]) AND ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) AS t0
FULL JOIN (
SELECT j1."product_id" AS l0, concat('[', string_agg(concat('{"name":', coalesce(to_json(t1."name")::text, 'null'), '}'), ',' ORDER BY t1."name" NULLS LAST, t1."id"), ']') AS v
FROM (SELECT "product_label"."product_id", "product_label"."label_id" FROM "public"."product_label" WHERE "product_label"."product_id" = ANY ($1::uuid[])) AS j1 JOIN (SELECT "label"."id", "label"."name" FROM "public"."label") AS t1 ON t1."id" = j1."label_id"
GROUP BY j1."product_id"
) AS r1 ON r1.l0 = t0."id"
FULL JOIN (
SELECT t2."link 0" AS l0, concat('[', string_agg(concat('{"city":', coalesce(to_json(t2."city")::text, 'null'), '}'), ',' ORDER BY t2."id"), ']') AS v
FROM (SELECT * FROM (SELECT t2.*, j2."product_id" AS "link 0", row_number() OVER (PARTITION BY j2."product_id" ORDER BY t2."id") AS "rank here" FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" = ANY ($1::uuid[])) AS j2 JOIN (SELECT "warehouse"."id", "warehouse"."city" FROM "public"."warehouse") AS t2 ON t2."id" = j2."warehouse_id") AS ranked WHERE "rank here" <= 3) AS t2
GROUP BY t2."link 0"
) AS r2 ON r2.l0 = t0."id"
FULL JOIN (
SELECT t4."id" AS l0, concat('{"name":', coalesce(to_json(t4."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "product"."replaces" FROM "public"."product" WHERE "product"."id" = ANY ($1::uuid[]) AND ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) OFFSET 0) AS t4
) AS r4 ON r4.l0 = t0."replaces"
FULL JOIN (
SELECT t5."product_id" AS l0, concat('{"quantity":', coalesce(t5."quantity"::text, 'null'), '}') AS v
FROM (SELECT DISTINCT ON ("line"."product_id") "line"."quantity", "line"."product_id" FROM "public"."line" WHERE "line"."product_id" = ANY ($1::uuid[]) ORDER BY "line"."product_id", "line"."order_id" DESC NULLS LAST, "line"."number") AS t5
) AS r5 ON r5.l0 = t0."id"
FULL JOIN (
SELECT j3."product_id" AS l0, string_agg(coalesce(t3."id"::text, 'null'), ',' ORDER BY t3."id") AS a0
FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" = ANY ($1::uuid[])) AS j3 JOIN (SELECT "warehouse"."id" FROM "public"."warehouse") AS t3 ON t3."id" = j3."warehouse_id"
GROUP BY j3."product_id"
) AS r3 ON r3.l0 = t0."id"
WHERE coalesce(t0."is here", false)

-- all
SELECT t0."id", concat('{"name":', coalesce(to_json(lower(btrim(t0."name", E' \t\n\r\f\v')))::text, '"it''s unnamed"'), ',"money":{"price":', coalesce(CASE WHEN t0."price" > '-Infinity' AND t0."price" < 'Infinity' THEN t0."price"::text END, 'null'), '},"tags":', coalesce(array_to_json(t0."tags")::text, 'null'), ',"seen":', coalesce(CASE WHEN t0."seen" IS NOT NULL THEN concat('[', (SELECT string_agg(coalesce(CASE WHEN isfinite(e) THEN replace(to_json(e)::text, '+00:00', 'Z') END, 'null'), ',' ORDER BY n) FROM unnest(t0."seen") WITH ORDINALITY AS u (e, n)), ']') END, 'null'), ',"picture":', coalesce('"' || translate(encode(t0."picture", 'base64'), E'\n', '') || '"', 'null'), ',"attributes":', coalesce(t0."attributes"::text, 'null'), ',"place":', coalesce('{"lat":' || (CASE WHEN t0."lat" > '-Infinity' AND t0."lat" < 'Infinity' THEN t0."lat"::text END) || ',"lon":' || (CASE WHEN t0."lon" > '-Infinity' AND t0."lon" < 'Infinity' THEN t0."lon"::text END) || '}', 'null'), ',"spot":', coalesce('{"lat":' || (CASE WHEN (t0."spot")[1] > '-Infinity' AND (t0."spot")[1] < 'Infinity' THEN (t0."spot")[1]::text END) || ',"lon":' || (CASE WHEN (t0."spot")[0] > '-Infinity' AND (t0."spot")[0] < 'Infinity' THEN (t0."spot")[0]::text END) || '}', 'null'), ',"kind":"product","labels":', coalesce(r1.v, '[]'), ',"warehouses":', coalesce(r2.v, '[]'), ',"warehouse_ids":', concat('[', r3.a0, ']'), ',"replaced":', coalesce(r4.v, 'null'), ',"last_line":', coalesce(r5.v, 'null'), '}') AS body
FROM (SELECT "product"."name", "product"."price", "product"."tags", "product"."seen", "product"."picture", "product"."attributes", "product"."lat", "product"."lon", "product"."spot", "product"."id", "product"."replaces" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) AS t0
LEFT JOIN (
SELECT j1."product_id" AS l0, concat('[', string_agg(concat('{"name":', coalesce(to_json(t1."name")::text, 'null'), '}'), ',' ORDER BY t1."name" NULLS LAST, t1."id"), ']') AS v
FROM (SELECT "product_label"."product_id", "product_label"."label_id" FROM "public"."product_label" WHERE "product_label"."product_id" = ANY (SELECT "product"."id" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE)) AS j1 JOIN (SELECT "label"."id", "label"."name" FROM "public"."label") AS t1 ON t1."id" = j1."label_id"
GROUP BY j1."product_id"
) AS r1 ON r1.l0 = t0."id"
LEFT JOIN (
SELECT t2."link 0" AS l0, concat('[', string_agg(concat('{"city":', coalesce(to_json(t2."city")::text, 'null'), '}'), ',' ORDER BY t2."id"), ']') AS v
FROM (SELECT * FROM (SELECT t2.*, j2."product_id" AS "link 0", row_number() OVER (PARTITION BY j2."product_id" ORDER BY t2."id") AS "rank here" FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" = ANY (SELECT "product"."id" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE)) AS j2 JOIN (SELECT "warehouse"."id", "warehouse"."city" FROM "public"."warehouse") AS t2 ON t2."id" = j2."warehouse_id") AS ranked WHERE "rank here" <= 3) AS t2
GROUP BY t2."link 0"
) AS r2 ON r2.l0 = t0."id"
LEFT JOIN (
SELECT t4."id" AS l0, concat('{"name":', coalesce(to_json(t4."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "product"."replaces" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) OFFSET 0) AS t4
) AS r4 ON r4.l0 = t0."replaces"
LEFT JOIN (
SELECT t5."product_id" AS l0, concat('{"quantity":', coalesce(t5."quantity"::text, 'null'), '}') AS v
FROM (SELECT DISTINCT ON ("line"."product_id") "line"."quantity", "line"."product_id" FROM "public"."line" WHERE "line"."product_id" = ANY (SELECT "product"."id" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) ORDER BY "line"."product_id", "line"."order_id" DESC NULLS LAST, "line"."number") AS t5
) AS r5 ON r5.l0 = t0."id"
LEFT JOIN (
SELECT j3."product_id" AS l0, string_agg(coalesce(t3."id"::text, 'null'), ',' ORDER BY t3."id") AS a0
FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" = ANY (SELECT "product"."id" FROM "public"."product" WHERE ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE)) AS j3 JOIN (SELECT "warehouse"."id" FROM "public"."warehouse") AS t3 ON t3."id" = j3."warehouse_id"
GROUP BY j3."product_id"
) AS r3 ON r3.l0 = t0."id"

-- a range
SELECT t0."id", concat('{"name":', coalesce(to_json(lower(btrim(t0."name", E' \t\n\r\f\v')))::text, '"it''s unnamed"'), ',"money":{"price":', coalesce(CASE WHEN t0."price" > '-Infinity' AND t0."price" < 'Infinity' THEN t0."price"::text END, 'null'), '},"tags":', coalesce(array_to_json(t0."tags")::text, 'null'), ',"seen":', coalesce(CASE WHEN t0."seen" IS NOT NULL THEN concat('[', (SELECT string_agg(coalesce(CASE WHEN isfinite(e) THEN replace(to_json(e)::text, '+00:00', 'Z') END, 'null'), ',' ORDER BY n) FROM unnest(t0."seen") WITH ORDINALITY AS u (e, n)), ']') END, 'null'), ',"picture":', coalesce('"' || translate(encode(t0."picture", 'base64'), E'\n', '') || '"', 'null'), ',"attributes":', coalesce(t0."attributes"::text, 'null'), ',"place":', coalesce('{"lat":' || (CASE WHEN t0."lat" > '-Infinity' AND t0."lat" < 'Infinity' THEN t0."lat"::text END) || ',"lon":' || (CASE WHEN t0."lon" > '-Infinity' AND t0."lon" < 'Infinity' THEN t0."lon"::text END) || '}', 'null'), ',"spot":', coalesce('{"lat":' || (CASE WHEN (t0."spot")[1] > '-Infinity' AND (t0."spot")[1] < 'Infinity' THEN (t0."spot")[1]::text END) || ',"lon":' || (CASE WHEN (t0."spot")[0] > '-Infinity' AND (t0."spot")[0] < 'Infinity' THEN (t0."spot")[0]::text END) || '}', 'null'), ',"kind":"product","labels":', coalesce(r1.v, '[]'), ',"warehouses":', coalesce(r2.v, '[]'), ',"warehouse_ids":', concat('[', r3.a0, ']'), ',"replaced":', coalesce(r4.v, 'null'), ',"last_line":', coalesce(r5.v, 'null'), '}') AS body
FROM (SELECT "product"."name", "product"."price", "product"."tags", "product"."seen", "product"."picture", "product"."attributes", "product"."lat", "product"."lon", "product"."spot", "product"."id", "product"."replaces" FROM "public"."product" WHERE "product"."id" > $1::uuid AND "product"."id" <= $2::uuid AND ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) AS t0
LEFT JOIN (
SELECT j1."product_id" AS l0, concat('[', string_agg(concat('{"name":', coalesce(to_json(t1."name")::text, 'null'), '}'), ',' ORDER BY t1."name" NULLS LAST, t1."id"), ']') AS v
FROM (SELECT "product_label"."product_id", "product_label"."label_id" FROM "public"."product_label" WHERE "product_label"."product_id" > $1::uuid AND "product_label"."product_id" <= $2::uuid) AS j1 JOIN (SELECT "label"."id", "label"."name" FROM "public"."label") AS t1 ON t1."id" = j1."label_id"
GROUP BY j1."product_id"
) AS r1 ON r1.l0 = t0."id"
LEFT JOIN (
SELECT t2."link 0" AS l0, concat('[', string_agg(concat('{"city":', coalesce(to_json(t2."city")::text, 'null'), '}'), ',' ORDER BY t2."id"), ']') AS v
FROM (SELECT * FROM (SELECT t2.*, j2."product_id" AS "link 0", row_number() OVER (PARTITION BY j2."product_id" ORDER BY t2."id") AS "rank here" FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" > $1::uuid AND "stored"."product_id" <= $2::uuid) AS j2 JOIN (SELECT "warehouse"."id", "warehouse"."city" FROM "public"."warehouse") AS t2 ON t2."id" = j2."warehouse_id") AS ranked WHERE "rank here" <= 3) AS t2
GROUP BY t2."link 0"
) AS r2 ON r2.l0 = t0."id"
LEFT JOIN (
SELECT t4."id" AS l0, concat('{"name":', coalesce(to_json(t4."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "product"."replaces" FROM "public"."product" WHERE "product"."id" > $1::uuid AND "product"."id" <= $2::uuid AND ((price > 0 -- not free
) OR "product"."name" ~~* '%free%') AND "product"."name" = ANY (ARRAY['a', 'b''c']::character varying[]) AND ("product"."gone") IS NOT TRUE) OFFSET 0) AS t4
) AS r4 ON r4.l0 = t0."replaces"
LEFT JOIN (
SELECT t5."product_id" AS l0, concat('{"quantity":', coalesce(t5."quantity"::text, 'null'), '}') AS v
FROM (SELECT DISTINCT ON ("line"."product_id") "line"."quantity", "line"."product_id" FROM "public"."line" WHERE "line"."product_id" > $1::uuid AND "line"."product_id" <= $2::uuid ORDER BY "line"."product_id", "line"."order_id" DESC NULLS LAST, "line"."number") AS t5
) AS r5 ON r5.l0 = t0."id"
LEFT JOIN (
SELECT j3."product_id" AS l0, string_agg(coalesce(t3."id"::text, 'null'), ',' ORDER BY t3."id") AS a0
FROM (SELECT DISTINCT "stored"."product_id", "stored"."warehouse_id" FROM "public"."stored" WHERE "stored"."product_id" > $1::uuid AND "stored"."product_id" <= $2::uuid) AS j3 JOIN (SELECT "warehouse"."id" FROM "public"."warehouse") AS t3 ON t3."id" = j3."warehouse_id"
GROUP BY j3."product_id"
) AS r3 ON r3.l0 = t0."id"
