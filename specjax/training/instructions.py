"""Instructions made from templates, for chat models: many kinds of task, many subjects, no two quite alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

SUBJECTS = (
    "photosynthesis", "the water cycle", "black holes", "volcanoes", "the human heart", "vaccines", "gravity",
    "electric cars", "solar panels", "recycling", "honey bees", "coral reefs", "the Roman Empire",
    "the French Revolution", "the printing press",
    "jazz music", "chess", "basketball", "Japanese gardens", "Italian cooking", "bread baking",
    "coffee", "tea", "healthy sleep", "stress at work", "learning a language", "public speaking", "saving money",
    "compound interest", "inflation", "the stock market", "small businesses", "remote work", "job interviews",
    "computer viruses", "search engines", "machine learning", "databases", "prime numbers", "fractions", "probability",
    "triangles", "the solar system", "the Moon", "dinosaurs", "penguins", "elephants", "wolves", "rain forests",
    "deserts", "earthquakes", "lightning", "bridges", "trains", "bicycles", "airplanes", "libraries", "museums",
    "poetry", "film making", "photography", "painting", "folk tales", "friendship", "courage", "curiosity", "patience",
    "gardening", "city parks", "clean water", "food waste", "climate change", "renewable energy", "ocean currents",
)  # fmt: skip
READERS = (
    "a child", "a beginner", "a busy manager", "a student", "a teacher", "my grandmother", "a new employee",
    "a curious friend", "someone who has never heard of it", "an expert in another field",
)  # fmt: skip
PLACES = ("Paris", "Tokyo", "Cairo", "Lima", "Oslo", "Nairobi", "Toronto", "Mumbai", "Sydney", "Rome", "Seoul")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Liam")
TASKS = (
    "return the largest number in a list", "count the vowels in a string", "reverse a string",
    "check whether a number is prime", "compute the factorial of a number", "merge two sorted lists",
    "remove duplicates from a list", "convert Celsius to Fahrenheit", "find the most common word in a text",
    "sum the digits of a number", "check whether a word is a palindrome", "sort a list of names by length",
    "read a file and count its lines", "compute the average of a list", "find the second smallest number",
)  # fmt: skip
TEMPLATES = (
    "Explain {subject} to {reader}.",
    "Explain {subject} to {reader} in {count} sentences.",
    "What is {subject}? Answer briefly.",
    "Give me {count} facts about {subject}.",
    "List {count} reasons why {subject} matters.",
    "What are the advantages and disadvantages of {subject}?",
    "Compare {subject} and {other}.",
    "How is {subject} related to {other}?",
    "Write a short story about {person} and {subject}.",
    "Write a poem of {count} lines about {subject}.",
    "Write an e-mail in which {person} tells {friend} about {subject}.",
    "Write a dialogue between {person} and {friend} about {subject}.",
    "Plan a trip of {count} days to {place} for {reader}.",
    "What should {person} see in {place}?",
    "Describe a morning in {place}.",
    "Write a Python function to {task}.",
    "Write a Python function to {task}, and explain how it works.",
    "Give me {count} questions that a teacher could ask about {subject}, with answers.",
    "Summarize what {reader} should know about {subject}.",
    "Write the introduction of an essay about {subject} and {other}.",
    "What are common mistakes of people who begin with {subject}?",
    "Make a list of {count} things that {person} needs for {subject}.",
    "{person} has {number} apples and gives {count} to {friend}. How many are left? Explain each step.",
    "{person} reads {count} pages a day. How long does a book of {number} pages take?",
    "Rewrite this sentence in a formal style: {person} thinks that {subject} is really great.",
    "Correct the grammar: {person} have went to {place} and see many thing about {subject}.",
    "Give {person} some advice about {subject}.",
    "Write a headline and a first paragraph for a news report about {subject} in {place}.",
    "Why do people in {place} care about {subject}?",
    "Invent a game about {subject} for {reader}.",
)


def drawn(seed: tuple[int, ...]) -> Iterator[str]:
    """Instructions without end, drawn with the given seed."""
    rng = np.random.default_rng(seed)

    def pick(words: tuple[str, ...]) -> str:
        return words[rng.integers(len(words))]

    while True:
        yield pick(TEMPLATES).format(
            subject=pick(SUBJECTS), other=pick(SUBJECTS), reader=pick(READERS), place=pick(PLACES), task=pick(TASKS),
            person=pick(PEOPLE), friend=pick(PEOPLE), count=rng.integers(2, 9), number=rng.integers(20, 400))
