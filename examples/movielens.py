"""MovieLens ratings as CSV, with the genres of a movie as a list in a string: "Action|Thriller".

python examples/movielens.py movielens_sample.csv
"""

import sys
from collections import defaultdict

import cedar
from cedar import col


def main(path: str) -> None:
    ratings = cedar.read_csv(path).with_columns(genres=col("genres").str.split("|"))

    names = sorted({genre for row in ratings.select("genres") for genre in row["genres"]})
    known = {genre: number for number, genre in enumerate(names)}

    def ids(genres: list[str]) -> list[int]:
        return [known[genre] for genre in genres]

    batches = (
        ratings.map(ids, "genres", into="genre_ids")
        .filter(col("rating") > 0)
        .select("user_id", "movie_id", "genre_ids", rating=col("rating").cast(float))
        .shuffle(seed=1)
        .batch(32, last="keep")
    )
    stars = defaultdict(list)
    with batches.loader(format="numpy") as loader:
        for batch in loader:
            for genres, rating in zip(batch["genre_ids"].to_list(), batch["rating"].tolist(), strict=True):
                for genre in genres:
                    stars[names[genre]].append(rating)

    print("genre        ratings  mean rating")
    for genre, given in sorted(stars.items(), key=lambda item: -len(item[1]))[:8]:
        print(f"{genre:<12} {len(given):>7} {sum(given) / len(given):>12.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
