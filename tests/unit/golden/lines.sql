-- root: public.line by order_id, number
-- these are the keys

-- order: public.order by id
SELECT DISTINCT t0."order_id", t0."number"
FROM "public"."line" AS t0
WHERE t0."order_id" = ANY ($1::bigint[]) AND t0."order_id" IS NOT NULL AND t0."number" IS NOT NULL

-- order.customer: public.customer by id
SELECT DISTINCT t1."order_id", t1."number"
FROM "public"."order" AS t0
JOIN "public"."line" AS t1 ON t1."order_id" = t0."id"
WHERE t0."customer_id" = ANY ($1::bigint[]) AND t1."order_id" IS NOT NULL AND t1."number" IS NOT NULL

-- parcels: public.parcel by order_id, number
-- these are the keys

-- by keys
SELECT t0."order_id", t0."number", concat('{"quantity":', coalesce(t0."quantity"::text, 'null'), ',"order":', coalesce(r1.v, 'null'), ',"parcels":', coalesce(r3.v, '[]'), ',"heaviest":', coalesce(CASE WHEN r4.a0 > '-Infinity' AND r4.a0 < 'Infinity' THEN r4.a0::text END, 'null'), '}') AS body
FROM (SELECT "line"."quantity", "line"."order_id", "line"."number", true AS "is here" FROM "public"."line" WHERE ("line"."order_id", "line"."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[]))) AS t0
FULL JOIN (
SELECT t1."id" AS l0, concat('{"customer":', coalesce(r2.v, 'null'), '}') AS v
FROM (SELECT "order"."customer_id", "order"."id", true AS "is here" FROM "public"."order" WHERE "order"."id" = ANY (SELECT "line"."order_id" FROM "public"."line" WHERE ("line"."order_id", "line"."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[]))) OFFSET 0) AS t1
FULL JOIN (
SELECT t2."id" AS l0, concat('{"email":', coalesce(to_json(t2."email")::text, 'null'), '}') AS v
FROM (SELECT "customer"."email", "customer"."id" FROM "public"."customer" WHERE "customer"."id" = ANY (SELECT "order"."customer_id" FROM "public"."order" WHERE "order"."id" = ANY (SELECT "line"."order_id" FROM "public"."line" WHERE ("line"."order_id", "line"."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[])))) OFFSET 0) AS t2
) AS r2 ON r2.l0 = t1."customer_id"
WHERE coalesce(t1."is here", false)
) AS r1 ON r1.l0 = t0."order_id"
FULL JOIN (
SELECT t3."order_id" AS l0, t3."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t3."weight" > '-Infinity' AND t3."weight" < 'Infinity' THEN t3."weight"::text END, 'null'), '}'), ',' ORDER BY t3."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[]))) AS t3
GROUP BY t3."order_id", t3."number"
) AS r3 ON r3.l0 = t0."order_id" AND r3.l1 = t0."number"
FULL JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, max(t4."weight") AS a0
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT * FROM unnest($1::bigint[], $2::integer[]))) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t0."order_id" AND r4.l1 = t0."number"
WHERE coalesce(t0."is here", false)

-- all
SELECT t0."order_id", t0."number", concat('{"quantity":', coalesce(t0."quantity"::text, 'null'), ',"order":', coalesce(r1.v, 'null'), ',"parcels":', coalesce(r3.v, '[]'), ',"heaviest":', coalesce(CASE WHEN r4.a0 > '-Infinity' AND r4.a0 < 'Infinity' THEN r4.a0::text END, 'null'), '}') AS body
FROM (SELECT "line"."quantity", "line"."order_id", "line"."number" FROM "public"."line") AS t0
LEFT JOIN (
SELECT t1."id" AS l0, concat('{"customer":', coalesce(r2.v, 'null'), '}') AS v
FROM (SELECT "order"."customer_id", "order"."id" FROM "public"."order") AS t1
LEFT JOIN (
SELECT t2."id" AS l0, concat('{"email":', coalesce(to_json(t2."email")::text, 'null'), '}') AS v
FROM (SELECT "customer"."email", "customer"."id" FROM "public"."customer") AS t2
) AS r2 ON r2.l0 = t1."customer_id"
) AS r1 ON r1.l0 = t0."order_id"
LEFT JOIN (
SELECT t3."order_id" AS l0, t3."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t3."weight" > '-Infinity' AND t3."weight" < 'Infinity' THEN t3."weight"::text END, 'null'), '}'), ',' ORDER BY t3."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT "line"."order_id", "line"."number" FROM "public"."line")) AS t3
GROUP BY t3."order_id", t3."number"
) AS r3 ON r3.l0 = t0."order_id" AND r3.l1 = t0."number"
LEFT JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, max(t4."weight") AS a0
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") = ANY (SELECT "line"."order_id", "line"."number" FROM "public"."line")) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t0."order_id" AND r4.l1 = t0."number"

-- a range
SELECT t0."order_id", t0."number", concat('{"quantity":', coalesce(t0."quantity"::text, 'null'), ',"order":', coalesce(r1.v, 'null'), ',"parcels":', coalesce(r3.v, '[]'), ',"heaviest":', coalesce(CASE WHEN r4.a0 > '-Infinity' AND r4.a0 < 'Infinity' THEN r4.a0::text END, 'null'), '}') AS body
FROM (SELECT "line"."quantity", "line"."order_id", "line"."number" FROM "public"."line" WHERE ("line"."order_id", "line"."number") > ($1::bigint, $2::integer) AND ("line"."order_id", "line"."number") <= ($3::bigint, $4::integer)) AS t0
LEFT JOIN (
SELECT t1."id" AS l0, concat('{"customer":', coalesce(r2.v, 'null'), '}') AS v
FROM (SELECT "order"."customer_id", "order"."id" FROM "public"."order" WHERE "order"."id" = ANY (SELECT "line"."order_id" FROM "public"."line" WHERE ("line"."order_id", "line"."number") > ($1::bigint, $2::integer) AND ("line"."order_id", "line"."number") <= ($3::bigint, $4::integer)) OFFSET 0) AS t1
LEFT JOIN (
SELECT t2."id" AS l0, concat('{"email":', coalesce(to_json(t2."email")::text, 'null'), '}') AS v
FROM (SELECT "customer"."email", "customer"."id" FROM "public"."customer" WHERE "customer"."id" = ANY (SELECT "order"."customer_id" FROM "public"."order" WHERE "order"."id" = ANY (SELECT "line"."order_id" FROM "public"."line" WHERE ("line"."order_id", "line"."number") > ($1::bigint, $2::integer) AND ("line"."order_id", "line"."number") <= ($3::bigint, $4::integer))) OFFSET 0) AS t2
) AS r2 ON r2.l0 = t1."customer_id"
) AS r1 ON r1.l0 = t0."order_id"
LEFT JOIN (
SELECT t3."order_id" AS l0, t3."number" AS l1, concat('[', string_agg(concat('{"weight":', coalesce(CASE WHEN t3."weight" > '-Infinity' AND t3."weight" < 'Infinity' THEN t3."weight"::text END, 'null'), '}'), ',' ORDER BY t3."id"), ']') AS v
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number", "parcel"."id" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") > ($1::bigint, $2::integer) AND ("parcel"."order_id", "parcel"."number") <= ($3::bigint, $4::integer)) AS t3
GROUP BY t3."order_id", t3."number"
) AS r3 ON r3.l0 = t0."order_id" AND r3.l1 = t0."number"
LEFT JOIN (
SELECT t4."order_id" AS l0, t4."number" AS l1, max(t4."weight") AS a0
FROM (SELECT "parcel"."weight", "parcel"."order_id", "parcel"."number" FROM "public"."parcel" WHERE ("parcel"."order_id", "parcel"."number") > ($1::bigint, $2::integer) AND ("parcel"."order_id", "parcel"."number") <= ($3::bigint, $4::integer)) AS t4
GROUP BY t4."order_id", t4."number"
) AS r4 ON r4.l0 = t0."order_id" AND r4.l1 = t0."number"
