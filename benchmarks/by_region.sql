SELECT region, trunc(ordered_on, 'MONTH') AS month, count(*) AS orders, cast(sum(price * euros) AS decimal(18, 2)) AS euros
FROM source CROSS JOIN (SELECT euros FROM bronze.rates WHERE currency = 'USD' AND valid_from < DATE '2024-01-01')
WHERE region IS NOT NULL
GROUP BY region, trunc(ordered_on, 'MONTH')
