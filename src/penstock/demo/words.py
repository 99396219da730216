"""The words of the sample shop: names, places, goods, and what people say about them.

Made up, and chosen so that a search finds something: `penstock search products 'oak lamp'`.
"""

from __future__ import annotations

FIRST_NAMES = (
    "Ada", "Alan", "Anita", "Barbara", "Björn", "Claude", "Donald", "Dorothy", "Edsger", "Elena", "Emmy", "Frances",
    "Grace", "Hedy", "Ines", "Jean", "José", "Karen", "Katherine", "Ken", "Lena", "Margaret", "Mary", "Niklaus", "Omar",
    "Radia", "Ruth", "Sofia", "Tim", "Yukihiro",
)  # fmt: skip
LAST_NAMES = (
    "Abbate", "Bartik", "Borg", "Clarke", "Easley", "Fischer", "Goldberg", "Hamilton", "Hopper", "Ito", "Jennings",
    "Keller", "Lamarr", "Liskov", "Lovelace", "Meyer", "Müller", "Noether", "O'Brien", "Perlman", "Petersen", "Ricci",
    "Rossi", "Sammet", "Silva", "Tanaka", "Turing", "Vaughan", "Wirth", "Žižka",
)  # fmt: skip
CITIES = (
    ("Amsterdam", "NL"), ("Berlin", "DE"), ("Bologna", "IT"), ("Dublin", "IE"), ("Gdańsk", "PL"), ("Kyoto", "JP"),
    ("Lisboa", "PT"), ("London", "GB"), ("Lyon", "FR"), ("Montréal", "CA"), ("Oslo", "NO"), ("Praha", "CZ"),
    ("São Paulo", "BR"), ("Toronto", "CA"), ("Wien", "AT"), ("Zürich", "CH"),
)  # fmt: skip
LOOKS = (
    "blue", "brass", "bright", "compact", "cosy", "folding", "green", "heavy", "light", "matt", "quiet", "red", "round",
    "slim", "small", "soft", "sturdy", "tall", "vintage", "white",
)  # fmt: skip
MATERIALS = (
    "bamboo",
    "cork",
    "cotton",
    "glass",
    "leather",
    "linen",
    "oak",
    "paper",
    "steel",
    "stone",
    "walnut",
    "wool",
)
GOODS = (
    "backpack", "bicycle bell", "bookshelf", "bowl", "chair", "clock", "desk", "jug", "kettle", "lamp", "mirror",
    "notebook", "pan", "pillow", "stool", "tea pot", "toolbox", "umbrella", "vase", "watering can",
)  # fmt: skip
USES = (
    "for the kitchen", "for long evenings", "for small rooms", "for the garden", "for travelling", "as a present",
    "for every day", "for people who read",
)  # fmt: skip
TAGS = (
    "bestseller", "children", "classic", "clearance", "cooking", "design", "eco", "fragile", "garden", "gift",
    "handmade", "kitchen", "large", "lighting", "limited", "new", "office", "outdoor", "reading", "refurbished", "sale",
    "seasonal", "storage", "travel",
)  # fmt: skip
VERDICTS = (
    (1, "Broke after a week"), (1, "Not what the picture shows"), (2, "Arrived late and scratched"),
    (2, "Cheaper than it looks"), (3, "Does what it should, no more"), (3, "Good enough for the price"),
    (4, "Well made and easy to clean"), (4, "Nicer than I expected"), (5, "I would buy it again at once"),
    (5, "Everybody asks me where I got it"),
)  # fmt: skip
