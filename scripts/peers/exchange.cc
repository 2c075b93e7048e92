// One end of the exchange that scripts/compare-peers.sh measures, by ps-lite's KVWorker and KVServer: all roles run this program
// with the same arguments, and with the environment that ps-lite wants.
//
//     exchange push|pull KEYS VALUES WINDOW SECONDS ROWS array|map
//
// A request has KEYS distinct keys of ROWS, with VALUES floats each; KEYS = ROWS = 1 is a dense table. The server adds a push
// to a table and copies a pull from it, which is an array of rows, or has a hash map from key to row before it. A worker
// prints what bench/examples/exchange.rs prints, the server its processor seconds and how many requests it answered.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <time.h>

#include "ps/ps.h"

struct Arguments {
  bool push, map;
  size_t keys, values, window, rows;
  double seconds;
} arguments;

static double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Table {
 public:
  Table() : cells_(arguments.rows * arguments.values) {
    first_ = ps::Postoffice::Get()->GetServerKeyRanges()[ps::MyRank()].begin();
    if (!arguments.map) return;
    row_of_.reserve(arguments.rows);
    for (size_t row = 0; row < arguments.rows; ++row) row_of_[first_ + row] = row;
  }

  void Serve(const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    ps::KVPairs<float> reply;
    size_t count = data.keys.size(), values = arguments.values;
    if (request.push) {
      for (size_t n = 0; n < count; ++n) {
        float* own = Row(data.keys[n]);
        const float* sum = data.vals.data() + n * values;
        for (size_t i = 0; i < values; ++i) own[i] += sum[i];
      }
    } else {
      reply.keys = data.keys;
      if (count == 1) {
        // A view of the table, without a copy.
        reply.vals.reset(Row(data.keys[0]), values, [](float*) {});
      } else {
        float* copy = new float[count * values];
        for (size_t n = 0; n < count; ++n) memcpy(copy + n * values, Row(data.keys[n]), values * sizeof(float));
        reply.vals.reset(copy, count * values, [](float* own) { delete[] own; });
      }
    }
    ++served;
    server->Response(request, reply);
  }

  size_t served = 0;

 private:
  float* Row(ps::Key key) {
    size_t row = arguments.map ? row_of_[key] : key - first_;
    return cells_.data() + row * arguments.values;
  }

  std::vector<float> cells_;
  ps::Key first_;
  std::unordered_map<ps::Key, uint32_t> row_of_;
};

class Worker {
 public:
  Worker() : store_(0, 0), buffers_(arguments.window) {
    ps::Key first = ps::Postoffice::Get()->GetServerKeyRanges()[0].begin();
    std::mt19937_64 random(7 + ps::MyRank());
    requests_.resize(arguments.keys == arguments.rows ? 1 : 16);
    for (auto& request : requests_) {
      std::vector<ps::Key> keys;
      while (keys.size() < arguments.keys) {
        while (keys.size() < arguments.keys) keys.push_back(first + random() % arguments.rows);
        std::sort(keys.begin(), keys.end());
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      }
      request.CopyFrom(keys.data(), keys.size());
    }
    for (auto& buffer : buffers_) buffer.resize(arguments.keys * arguments.values, 1e-6f);
  }

  // Requests for this long; returns the time of each since the last one.
  std::vector<double> Run(double seconds) {
    std::deque<int> flying;
    std::vector<double> times;
    double begun = now(), last = begun;
    for (bool over = false; !over || !flying.empty();) {
      over = over || now() - begun >= seconds;
      for (; !over && flying.size() < arguments.window; ++sent_) {
        auto& keys = requests_[sent_ % requests_.size()];
        auto& values = buffers_[sent_ % arguments.window];
        flying.push_back(arguments.push ? store_.ZPush(keys, values) : store_.ZPull(keys, &values));
      }
      if (flying.empty()) break;
      store_.Wait(flying.front());
      flying.pop_front();
      double time = now();
      times.push_back(time - last);
      last = time;
    }
    elapsed = last - begun;
    return times;
  }

  double elapsed = 0;

 private:
  ps::KVWorker<float> store_;
  std::vector<ps::SArray<ps::Key>> requests_;
  std::vector<ps::SArray<float>> buffers_;
  size_t sent_ = 0;
};

static void work() {
  Worker worker;
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
  worker.Run(0.3);
  double before = processor_seconds();
  std::vector<double> times = worker.Run(arguments.seconds);
  double used = processor_seconds() - before;
  std::sort(times.begin(), times.end());
  size_t count = times.size();
  double median = times[count / 2] * 1e6, highest = times[count * 99 / 100] * 1e6;
  printf("worker %.2f %.1f %.1f %.6f %zu\n", count / worker.elapsed, median, highest, used, count);
  fflush(stdout);
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
}

int main(int count, char** words) {
  if (count != 8) {
    fprintf(stderr, "usage: exchange push|pull KEYS VALUES WINDOW SECONDS ROWS array|map\n");
    return 2;
  }
  auto number = [&](int at) { return static_cast<size_t>(atol(words[at])); };
  bool push = words[1] == std::string("push"), map = words[7] == std::string("map");
  arguments = {push, map, number(2), number(3), number(4), number(6), atof(words[5])};
  ps::Start(0);
  Table* table = nullptr;
  if (ps::IsServer()) {
    auto server = new ps::KVServer<float>(0);
    table = new Table;
    server->set_request_handle([table](const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* own) {
      table->Serve(request, data, own);
    });
    ps::RegisterExitCallback([server]() { delete server; });
  }
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
  double before = processor_seconds();
  if (ps::IsWorker()) work();
  ps::Finalize(0, true);
  if (table) printf("server %.6f %zu\n", processor_seconds() - before, table->served);
  return 0;
}
