-- root: public.customer by id
-- these are the keys

-- orders: public.order by customer_id
-- these are the keys

-- orders.lines: public.line by order_id
SELECT DISTINCT t0."customer_id"
FROM "public"."order" AS t0
WHERE t0."id" = ANY ($1::bigint[]) AND t0."customer_id" IS NOT NULL

-- orders.lines.product: public.product by id
SELECT DISTINCT t1."customer_id"
FROM "public"."line" AS t0
JOIN "public"."order" AS t1 ON t1."id" = t0."order_id"
WHERE t0."product_id" = ANY ($1::uuid[]) AND t1."customer_id" IS NOT NULL

-- orders.lines.parcels: public.parcel by order_id, number
SELECT DISTINCT t1."customer_id"
FROM "public"."line" AS t0
JOIN "public"."order" AS t1 ON t1."id" = t0."order_id"
WHERE (t0."order_id", t0."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[])) AND t1."customer_id" IS NOT NULL

-- by keys
SELECT t0."id", concat('{"id":', coalesce(t0."id"::text, 'null'), ',"email":', coalesce(to_json(t0."email")::text, 'null'), ',"joined":', coalesce(CASE WHEN isfinite(t0."joined") THEN replace(to_json(t0."joined")::text, '+00:00', 'Z') END, 'null'), ',"orders":', coalesce(r1.v, '[]'), ',"spent":', coalesce(r5.a0::numeric::text, 'null'), ',"order_count":', coalesce(r5.a1, 0), '}') AS body
FROM (SELECT "customer"."id", "customer"."email", "customer"."joined", true AS "is here" FROM "public"."customer" WHERE "customer"."id" = ANY ($1::bigint[])) AS t0
FULL JOIN (
SELECT t1."customer_id" AS l0, concat('[', string_agg(concat('{"id":', coalesce(t1."id"::text, 'null'), ',"placed":', coalesce(CASE WHEN isfinite(t1."placed") THEN to_json(t1."placed")::text END, 'null'), ',"state":', coalesce(to_json(t1."state")::text, 'null'), ',"total":', coalesce(t1."total"::numeric::text, 'null'), ',"lines":', coalesce(r2.v, '[]'), '}'), ',' ORDER BY t1."placed" DESC NULLS LAST, t1."id"), ']') AS v
FROM (SELECT * FROM (SELECT "order"."id", "order"."placed", "order"."state", "order"."total", "order"."customer_id", true AS "is here", row_number() OVER (PARTITION BY "order"."customer_id" ORDER BY "order"."placed" DESC NULLS LAST, "order"."id") AS "rank here" FROM "public"."order" WHERE "order"."customer_id" = ANY ($1::bigint[]) AND "order"."state" <> 'draft') AS ranked WHERE "rank here" <= 10) AS t1
FULL JOIN (
SELECT t2."order_id" AS l0, concat('[', string_agg(concat('{"number":', coalesce(t2."number"::text, 'null'), ',"quantity":', coalesce(t2."quantity"::text, 'null'), ',"product":', coalesce(r3.v, 'null'), ',"parcels":', coalesce(r4.v, '[]'), '}'), ',' ORDER BY t2."order_id", t2."number"), ']') AS v
FROM (SELECT "line"."number", "line"."quantity", "line"."product_id", "line"."order_id", true AS "is here" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" = ANY ($1::bigint[]) AND "order"."state" <> 'draft')) AS t2
FULL JOIN (
SELECT t3."id" AS l0, concat('{"name":', coalesce(to_json(t3."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "line"."product_id" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" = ANY ($1::bigint[]) AND "order"."state" <> 'draft')) OFFSET 0) AS t3
) AS r3 ON r3.l0 = t2."product_id"
FULL JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t4."weight" > '-Infinity' AND t4."weight" < 'Infinity' THEN t4."weight"::text END, 'null'), '}'), ',' ORDER BY t4."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT "line"."order_id", "line"."number" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" = ANY ($1::bigint[]) AND "order"."state" <> 'draft'))) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t2."order_id" AND r4.l1 = t2."number"
WHERE coalesce(t2."is here", false)
GROUP BY t2."order_id"
) AS r2 ON r2.l0 = t1."id"
WHERE coalesce(t1."is here", false)
GROUP BY t1."customer_id"
) AS r1 ON r1.l0 = t0."id"
FULL JOIN (
SELECT t5."customer_id" AS l0, sum(t5."total") AS a0, count(*) AS a1
FROM (SELECT "order"."total", "order"."customer_id" FROM "public"."order" WHERE "order"."customer_id" = ANY ($1::bigint[])) AS t5
GROUP BY t5."customer_id"
) AS r5 ON r5.l0 = t0."id"
WHERE coalesce(t0."is here", false)

-- all
SELECT t0."id", concat('{"id":', coalesce(t0."id"::text, 'null'), ',"email":', coalesce(to_json(t0."email")::text, 'null'), ',"joined":', coalesce(CASE WHEN isfinite(t0."joined") THEN replace(to_json(t0."joined")::text, '+00:00', 'Z') END, 'null'), ',"orders":', coalesce(r1.v, '[]'), ',"spent":', coalesce(r5.a0::numeric::text, 'null'), ',"order_count":', coalesce(r5.a1, 0), '}') AS body
FROM (SELECT "customer"."id", "customer"."email", "customer"."joined" FROM "public"."customer") AS t0
LEFT JOIN (
SELECT t1."customer_id" AS l0, concat('[', string_agg(concat('{"id":', coalesce(t1."id"::text, 'null'), ',"placed":', coalesce(CASE WHEN isfinite(t1."placed") THEN to_json(t1."placed")::text END, 'null'), ',"state":', coalesce(to_json(t1."state")::text, 'null'), ',"total":', coalesce(t1."total"::numeric::text, 'null'), ',"lines":', coalesce(r2.v, '[]'), '}'), ',' ORDER BY t1."placed" DESC NULLS LAST, t1."id"), ']') AS v
FROM (SELECT * FROM (SELECT "order"."id", "order"."placed", "order"."state", "order"."total", "order"."customer_id", row_number() OVER (PARTITION BY "order"."customer_id" ORDER BY "order"."placed" DESC NULLS LAST, "order"."id") AS "rank here" FROM "public"."order" WHERE "order"."customer_id" IS NOT NULL AND "order"."state" <> 'draft') AS ranked WHERE "rank here" <= 10) AS t1
LEFT JOIN (
SELECT t2."order_id" AS l0, concat('[', string_agg(concat('{"number":', coalesce(t2."number"::text, 'null'), ',"quantity":', coalesce(t2."quantity"::text, 'null'), ',"product":', coalesce(r3.v, 'null'), ',"parcels":', coalesce(r4.v, '[]'), '}'), ',' ORDER BY t2."order_id", t2."number"), ']') AS v
FROM (SELECT "line"."number", "line"."quantity", "line"."product_id", "line"."order_id" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" IS NOT NULL AND "order"."state" <> 'draft')) AS t2
LEFT JOIN (
SELECT t3."id" AS l0, concat('{"name":', coalesce(to_json(t3."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "line"."product_id" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" IS NOT NULL AND "order"."state" <> 'draft')) OFFSET 0) AS t3
) AS r3 ON r3.l0 = t2."product_id"
LEFT JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t4."weight" > '-Infinity' AND t4."weight" < 'Infinity' THEN t4."weight"::text END, 'null'), '}'), ',' ORDER BY t4."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT "line"."order_id", "line"."number" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" IS NOT NULL AND "order"."state" <> 'draft'))) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t2."order_id" AND r4.l1 = t2."number"
GROUP BY t2."order_id"
) AS r2 ON r2.l0 = t1."id"
GROUP BY t1."customer_id"
) AS r1 ON r1.l0 = t0."id"
LEFT JOIN (
SELECT t5."customer_id" AS l0, sum(t5."total") AS a0, count(*) AS a1
FROM (SELECT "order"."total", "order"."customer_id" FROM "public"."order" WHERE "order"."customer_id" IS NOT NULL) AS t5
GROUP BY t5."customer_id"
) AS r5 ON r5.l0 = t0."id"

-- a range
SELECT t0."id", concat('{"id":', coalesce(t0."id"::text, 'null'), ',"email":', coalesce(to_json(t0."email")::text, 'null'), ',"joined":', coalesce(CASE WHEN isfinite(t0."joined") THEN replace(to_json(t0."joined")::text, '+00:00', 'Z') END, 'null'), ',"orders":', coalesce(r1.v, '[]'), ',"spent":', coalesce(r5.a0::numeric::text, 'null'), ',"order_count":', coalesce(r5.a1, 0), '}') AS body
FROM (SELECT "customer"."id", "customer"."email", "customer"."joined" FROM "public"."customer" WHERE "customer"."id" > $1::bigint AND "customer"."id" <= $2::bigint) AS t0
LEFT JOIN (
SELECT t1."customer_id" AS l0, concat('[', string_agg(concat('{"id":', coalesce(t1."id"::text, 'null'), ',"placed":', coalesce(CASE WHEN isfinite(t1."placed") THEN to_json(t1."placed")::text END, 'null'), ',"state":', coalesce(to_json(t1."state")::text, 'null'), ',"total":', coalesce(t1."total"::numeric::text, 'null'), ',"lines":', coalesce(r2.v, '[]'), '}'), ',' ORDER BY t1."placed" DESC NULLS LAST, t1."id"), ']') AS v
FROM (SELECT * FROM (SELECT "order"."id", "order"."placed", "order"."state", "order"."total", "order"."customer_id", row_number() OVER (PARTITION BY "order"."customer_id" ORDER BY "order"."placed" DESC NULLS LAST, "order"."id") AS "rank here" FROM "public"."order" WHERE "order"."customer_id" > $1::bigint AND "order"."customer_id" <= $2::bigint AND "order"."state" <> 'draft') AS ranked WHERE "rank here" <= 10) AS t1
LEFT JOIN (
SELECT t2."order_id" AS l0, concat('[', string_agg(concat('{"number":', coalesce(t2."number"::text, 'null'), ',"quantity":', coalesce(t2."quantity"::text, 'null'), ',"product":', coalesce(r3.v, 'null'), ',"parcels":', coalesce(r4.v, '[]'), '}'), ',' ORDER BY t2."order_id", t2."number"), ']') AS v
FROM (SELECT "line"."number", "line"."quantity", "line"."product_id", "line"."order_id" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" > $1::bigint AND "order"."customer_id" <= $2::bigint AND "order"."state" <> 'draft')) AS t2
LEFT JOIN (
SELECT t3."id" AS l0, concat('{"name":', coalesce(to_json(t3."name")::text, 'null'), '}') AS v
FROM (SELECT "product"."name", "product"."id" FROM "public"."product" WHERE "product"."id" = ANY (SELECT "line"."product_id" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" > $1::bigint AND "order"."customer_id" <= $2::bigint AND "order"."state" <> 'draft')) OFFSET 0) AS t3
) AS r3 ON r3.l0 = t2."product_id"
LEFT JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t4."weight" > '-Infinity' AND t4."weight" < 'Infinity' THEN t4."weight"::text END, 'null'), '}'), ',' ORDER BY t4."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT "line"."order_id", "line"."number" FROM "public"."line" WHERE "line"."order_id" = ANY (SELECT "order"."id" FROM "public"."order" WHERE "order"."customer_id" > $1::bigint AND "order"."customer_id" <= $2::bigint AND "order"."state" <> 'draft'))) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t2."order_id" AND r4.l1 = t2."number"
GROUP BY t2."order_id"
) AS r2 ON r2.l0 = t1."id"
GROUP BY t1."customer_id"
) AS r1 ON r1.l0 = t0."id"
LEFT JOIN (
SELECT t5."customer_id" AS l0, sum(t5."total") AS a0, count(*) AS a1
FROM (SELECT "order"."total", "order"."customer_id" FROM "public"."order" WHERE "order"."customer_id" > $1::bigint AND "order"."customer_id" <= $2::bigint) AS t5
GROUP BY t5."customer_id"
) AS r5 ON r5.l0 = t0."id"
