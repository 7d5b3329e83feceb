package faulttest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Main is for a package's TestMain. It runs a worker if the environment says so, else
// redistest.Main.
func Main(m *testing.M, opts ...goleak.Option) {
	redis.SetLogger(quiet{}) // these tests break connections
	if text := os.Getenv(workerVariable); text != "" {
		os.Exit(runWorker(text))
	}
	redistest.Main(m, opts...)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// World is a Redis, the workers that use it, and their history.
type World struct {
	// Client is the test's own client. It bypasses proxies, so that their faults do not affect it.
	Client redis.UniversalClient
	Prefix string
	Topics []string
	Groups []string

	SingleActive bool     // of all groups
	Unregistered []string // topics whose groups do not exist until somebody subscribes

	t       testing.TB
	patient redis.UniversalClient // while it judges, when all servers answer
	direct  Place
	dir     string
	journal *Journal // the test's own

	mu      sync.Mutex
	workers []*Running

	sampler *sampler
	unwatch func()
	history history
	counter counter
}

// NewWorld returns a world on the Redis at a place, with a topic "t" and a group "g", unless change
// sets others. The groups exist when it returns.
func NewWorld(t testing.TB, direct Place, change ...func(*World)) *World {
	t.Helper()
	dir := t.TempDir()
	journal, err := OpenJournal(dir, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = journal.Close() })
	w := &World{
		Client: direct.Client(impatient), Prefix: redisdelay.DefaultKeyPrefix, Topics: []string{"t"}, Groups: []string{"g"},
		t: t, direct: direct, dir: dir, journal: journal, history: history{reader: reader{dir: dir}}, counter: counter{reader: reader{dir: dir}},
	}
	for _, c := range change {
		c(w)
	}
	t.Cleanup(func() { _ = w.Client.Close() })
	w.Register()
	w.sampler = newSampler(w)
	t.Cleanup(w.sampler.stop)
	w.unwatch = w.watch()
	t.Cleanup(w.unwatch)
	return w
}

// Register creates all groups that do not exist.
func (w *World) Register() {
	w.t.Helper()
	client := w.direct.Client(patient)
	defer client.Close()
	for _, topic := range w.Topics {
		if slices.Contains(w.Unregistered, topic) {
			continue
		}
		for _, group := range w.Groups {
			s, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
				Client: client, KeyPrefix: w.Prefix, ConsumerGroup: group, MaxDeliveries: -1, SingleActive: w.SingleActive,
				TakeoverWindow: -1,
			}, nil)
			require.NoError(w.t, err)
			require.NoError(w.t, s.SubscribeInitialize(topic))
			require.NoError(w.t, s.Close())
		}
	}
}

// Running is a worker that was started.
type Running struct {
	Worker
	w     *World
	cmd   *exec.Cmd
	stdin interface {
		Write([]byte) (int, error)
		Close() error
	}
	lines chan string
	ended chan struct{}
	err   error
}

// Start starts workers, and returns when they are at work. A worker without a Place uses the
// world's.
func (w *World) Start(workers ...Worker) []*Running {
	w.t.Helper()
	var started []*Running
	for _, worker := range workers {
		r, err := w.launch(worker)
		require.NoError(w.t, err)
		started = append(started, r)
	}
	for _, r := range started {
		r.await("ready")
		r.up()
	}
	return started
}

// Await waits until the publishers have published all their messages.
func (w *World) Await(publishers ...*Running) {
	w.t.Helper()
	for _, r := range publishers {
		r.await("done")
	}
}

func (w *World) launch(worker Worker) (*Running, error) {
	if len(worker.Place.Addrs) == 0 {
		worker.Place = w.direct
	}
	if worker.Topics == nil {
		worker.Topics = w.Topics
	}
	if worker.Role == Consumer && worker.Group == "" {
		worker.Group = w.Groups[0]
	}
	worker.Direct, worker.Dir, worker.Prefix = w.direct, w.dir, w.Prefix
	r := &Running{Worker: worker, w: w, lines: make(chan string, 10), ended: make(chan struct{})}
	if err := r.start(); err != nil {
		return nil, err
	}
	w.t.Cleanup(r.Kill)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.workers = append(w.workers, r)
	return r, nil
}

// StopLooking stops the sampling of Redis, for tests that change the data themselves.
func (w *World) StopLooking() {
	w.sampler.stop()
	w.sampler.early = true
}

// Release ends the handlers of messages with Hold of a name, those that begin later too.
func (w *World) Release(name string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(released(w.dir, name), nil, 0o600))
}

// released is the file that exists once a name is released.
func released(dir, name string) string { return filepath.Join(dir, name+".released") }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Note adds events of the test itself to the history.
func (w *World) Note(events ...Event) { w.journal.Write(events...) }

// Logs counts the errors with a text that workers have logged so far.
func (w *World) Logs(text string) int {
	w.t.Helper()
	n, err := w.history.logs(text)
	require.NoError(w.t, err)
	return n
}

// running returns all workers that were ever started.
func (w *World) running() []*Running {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.workers)
}

// Handled waits until handlers have begun n times.
func (w *World) Handled(n int) { w.t.Helper(); w.AwaitEvents(Start, n) }

// AwaitEvents waits until there are n events of a kind.
func (w *World) AwaitEvents(kind Kind, n int) {
	w.t.Helper()
	w.eventually(Pick(time.Minute, 10*time.Minute), func() (bool, string) {
		found := w.Count(kind)
		return found >= n, fmt.Sprintf("%d of %d events %q", found, n, kind)
	})
}

// Count returns the number of events of a kind so far.
func (w *World) Count(kind Kind) int {
	w.t.Helper()
	n, err := w.counter.count(kind)
	require.NoError(w.t, err)
	return n
}

// CountOf returns the number of events of a kind that a worker has written so far.
func (w *World) CountOf(kind Kind, worker string) int {
	w.t.Helper()
	n, err := w.counter.countOf(kind, worker)
	require.NoError(w.t, err)
	return n
}

// History returns the events so far.
func (w *World) History() []Event {
	w.t.Helper()
	events, err := w.history.now()
	require.NoError(w.t, err)
	return events
}

// StopPublishers stops all publishers, and waits for their end.
func (w *World) StopPublishers() { w.t.Helper(); w.stop(Publisher) }

func (w *World) stop(role Role) {
	w.t.Helper()
	var wg sync.WaitGroup
	for _, r := range w.running() {
		if r.Role == role {
			wg.Go(r.Stop)
		}
	}
	wg.Wait()
}

// Drain waits until all published messages are acked, cancelled or dead.
func (w *World) Drain(patience time.Duration) {
	w.t.Helper()
	w.eventually(patience, func() (bool, string) {
		var left []string
		for _, topic := range w.Topics {
			n, err := w.unsettled(context.Background(), queue.NewKeys(w.Prefix, topic))
			if err != nil {
				return false, err.Error()
			}
			if n > 0 {
				left = append(left, fmt.Sprintf("topic %q: %d messages", topic, n))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}

// unsettled counts the messages of a topic that are not settled in some group.
func (w *World) unsettled(ctx context.Context, k queue.Keys) (n int, err error) {
	bodies, err := w.Client.HKeys(ctx, k.Messages()).Result()
	if err != nil || len(bodies) == 0 {
		return 0, err
	}
	dead := map[string]int{}
	for _, group := range w.Groups {
		ids, err := w.Client.ZRange(ctx, k.Dead(group), 0, -1).Result()
		if err != nil {
			return 0, err
		}
		for _, id := range ids {
			dead[id]++
		}
	}
	refs, err := w.Client.HGetAll(ctx, k.Refs()).Result()
	if err != nil {
		return 0, err
	}
	for _, id := range bodies {
		needed, _ := strconv.Atoi(cmp.Or(refs[id], "1"))
		if dead[id] < needed {
			n++
		}
	}
	return n, nil
}

// eventually polls until a condition is true. After patience it fails the test with the condition's
// text.
func (w *World) eventually(patience time.Duration, holds func() (bool, string)) {
	w.t.Helper()
	said := ""
	if !Holds(func() (ok bool) { ok, said = holds(); return ok }, patience, 5*time.Millisecond) {
		w.t.Fatalf("not after %v: %s", patience, said)
	}
}

// Eventually polls until a condition is true. After patience it fails the test with a message.
// Unlike testify's, it polls in the test's goroutine, so the condition may fail the test, and never
// runs after its end.
func Eventually(t testing.TB, holds func() bool, patience, tick time.Duration, said ...any) {
	t.Helper()
	if !Holds(holds, patience, tick) {
		require.Fail(t, fmt.Sprintf("not after %v", patience), said...)
	}
}

// Holds polls until a condition is true. It returns false after patience.
func Holds(holds func() bool, patience, tick time.Duration) bool {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(tick) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
