"""Expected finding: waiting_samples.

Articles come from a document server one request at a time; each request waits about
8 ms for the answer and costs hardly any CPU. Asking for a batch's articles at once repairs it.
"""
import argparse
import http.client
import multiprocessing
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 5000
TOPICS = 12


class ArticleHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    articles = []

    def do_GET(self):
        number = int(self.path.rsplit("/", 1)[1])
        time.sleep(0.008)  # the storage behind the real server
        body = self.articles[number % len(self.articles)]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def serve(ports):
    rng = random.Random(5)
    ArticleHandler.articles = [
        " ".join(f"w{rng.randrange(VOCABULARY)}" for _ in range(100)).encode() for _ in range(800)
    ]
    server = Server(("127.0.0.1", 0), ArticleHandler)
    ports.put(server.server_address[1])
    server.serve_forever()


class Articles(Dataset):
    def __init__(self, port, at_once):
        self.port = port
        self.connections = None
        self.pool = None
        if at_once:
            self.__getitems__ = self.fetch_many

    def __len__(self):
        return 50000

    def __getitem__(self, number):
        if self.connections is None:
            self.connections = threading.local()
        if not hasattr(self.connections, "http"):
            self.connections.http = http.client.HTTPConnection("127.0.0.1", self.port)
        self.connections.http.request("GET", f"/article/{number}")
        text = self.connections.http.getresponse().read().decode()
        words = torch.tensor([int(word[1:]) for word in text.split()])
        return words, number % TOPICS

    def fetch_many(self, numbers):
        if self.pool is None:
            self.pool = ThreadPoolExecutor(8)
        return list(self.pool.map(self.__getitem__, numbers))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)

    ports = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
    loader = DataLoader(Articles(ports.get(), args.fixed), batch_size=16, shuffle=True, num_workers=2)

    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, TOPICS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, began = 0, time.perf_counter()
    while step < args.steps:
        for words, topic in loader:
            loss = nn.functional.cross_entropy(model(words), topic)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f} after {step} steps, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
