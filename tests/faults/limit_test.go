package faults

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The limit of five processes, by what the servers say that they did.
const (
	limitRate, limitBurst, limitAtOnce = 200, 10, 12
)

func TestALimitHoldsOverProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a limit of 200 a second and 12 at once holds in every span of time, over five processes of which three are killed; nothing is lost")
	server := redistest.Start(t)
	log := follow(t, server)
	w := limitedWorld(t, faulttest.At(server.Addr()))
	running := startLimited(w, 0, 5)
	for i := range faulttest.Pick(3, 30) {
		w.Handled(w.Count(faulttest.Start) + 100)
		running[0].Kill()
		running = append(running[1:], startLimited(w, 5+i, 1)...)
	}
	w.Handled(w.Count(faulttest.Start) + 200)
	finishLimited(w)
	log.check(t)
}

func TestALimitHoldsOverAFailover(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a limit of 200 a second and 12 at once holds in every span of time on each of two primaries; the failover adds a burst at most")
	primary, others := redistest.StartReplicated(t, 2)
	sentinels := redistest.StartSentinels(t, primary, others...)
	log := follow(t, append(others, primary)...)
	w := limitedWorld(t, faulttest.Place{Addrs: sentinels, MasterName: redistest.PrimaryName})
	startLimited(w, 0, 5)
	w.Handled(300)
	primary.Kill()
	w.Handled(w.Count(faulttest.Start) + 300)
	primary.Restart()
	w.StopPublishers()
	w.Drain(time.Minute)
	log.check(t)
}

func limitedWorld(t *testing.T, place faulttest.Place) *faulttest.World {
	t.Helper()
	w := faulttest.NewWorld(t, place)
	// 250 a second, of which a quarter comes twice: more than the limit, and no more, because the rest is drained at the end.
	w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Callers: 2, Batch: 5, PauseMS: 40, DelaysMS: []int{0, 0, 0, 500},
		Do: []string{faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Nack(1, 20*time.Millisecond)},
	})
	return w
}

func startLimited(w *faulttest.World, first, n int) (running []*faulttest.Running) {
	for i := range n {
		running = append(running, w.Start(faulttest.Worker{
			Role: faulttest.Consumer, Name: fmt.Sprintf("consumer-%d", first+i), InFlight: 10, WorkMS: 5,
			Limit: limitRate, Burst: limitBurst, AtOnce: limitAtOnce,
		})...)
	}
	return running
}

func finishLimited(w *faulttest.World) {
	w.StopPublishers()
	w.Drain(time.Minute)
	w.Verify(faulttest.Rules{})
}

// leaseLog is what servers lease, by their own log.
type leaseLog struct {
	mu     sync.Mutex
	leases []loggedLease
	names  map[string]string  // last lease of each message
	last   string             // claim that leased last
	held   [3]map[string]bool // by server
	most   int                // leased at the same time
}

// A script reads the clock after the server has told its call, and before it tells the lease.
type loggedLease struct {
	from, at time.Time
	server   int
	of       string // the claim
	returned bool   // unused, before another claim leased any
}

// call is what a server told last of a script's call.
type call struct {
	script string
	at     time.Time
}

var quotedWord = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)

// follow has servers tell all that they do, and reads what their scripts lease.
func follow(t *testing.T, servers ...*redistest.Instance) *leaseLog {
	t.Helper()
	l := &leaseLog{names: map[string]string{}, held: [3]map[string]bool{{}, {}, {}}}
	for i, in := range servers {
		lines, err := monitor(t.Context(), in)
		require.NoError(t, err)
		go func() {
			for t.Context().Err() == nil {
				var last call
				for err == nil {
					var line string
					if line, err = lines.ReadString('\n'); err == nil {
						l.read(i, line, &last)
					}
				}
				time.Sleep(10 * time.Millisecond) // Sentinels have a new primary drop its clients, and a server may be down
				lines, err = monitor(t.Context(), in)
			}
		}()
	}
	return l
}

// monitor has a server tell what it does, until the context ends.
func monitor(ctx context.Context, in *redistest.Instance) (*bufio.Reader, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", in.Addr())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if _, err = conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(conn, 1<<20)
	_, err = lines.ReadString('\n') // OK
	return lines, err
}

// read takes in a line, such as: +1700000000.123456 [0 lua] "HSET" "key" "field" "value"
func (l *leaseLog) read(server int, line string, last *call) {
	head, _, _ := strings.Cut(line, "]")
	quoted := quotedWord.FindAllString(line[:min(len(line), 500)], 2) // arguments may be long, and are of no use here
	if len(quoted) < 2 {
		return
	}
	seconds, _ := strconv.ParseFloat(strings.TrimPrefix(strings.Fields(head)[0], "+"), 64)
	at := time.UnixMicro(int64(seconds * 1e6))
	if !strings.HasSuffix(head, " lua") {
		if strings.EqualFold(quoted[0], `"evalsha"`) || strings.EqualFold(quoted[0], `"eval"`) {
			*last = call{queue.ScriptName(strings.Trim(quoted[1], `"`)), at}
		}
		return
	}
	if !strings.HasSuffix(quoted[1], `:leases:g"`) || quoted[0] != `"HSET"` && quoted[0] != `"HDEL"` {
		return
	}
	words := quotedWord.FindAllString(line, -1)[2:]
	for i := range words {
		words[i], _ = strconv.Unquote(words[i])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if quoted[0] == `"HDEL"` {
		for _, id := range words {
			if last.script == "release" && l.last == l.names[id] {
				i := slices.IndexFunc(l.leases, func(lease loggedLease) bool { return lease.of == l.last && !lease.returned })
				l.leases[i].returned = true
			}
			delete(l.held[server], id)
		}
		return
	}
	for pair := range slices.Chunk(words, 2) {
		id, token := pair[0], pair[1]
		if token == "" { // it makes the hash a table
			continue
		}
		part := strings.Split(token, ":")
		l.last = part[0] + ":" + part[1]
		l.names[id], l.held[server][id] = l.last, true
		l.leases = append(l.leases, loggedLease{from: last.at, at: at, server: server, of: l.last})
	}
	l.most = max(l.most, len(l.held[server]))
}

// check compares every span of time with the bound.
func (l *leaseLog) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	leases := slices.DeleteFunc(slices.Clone(l.leases), func(lease loggedLease) bool { return lease.returned })
	slices.SortStableFunc(leases, func(a, b loggedLease) int { return a.at.Compare(b.at) })
	require.Greater(t, len(leases), 500)
	worst := 0.0
	for i := range leases {
		for j := i; j < len(leases); j++ {
			burst := limitBurst
			if leases[i].server != leases[j].server {
				burst *= 2
			}
			span := leases[j].at.Sub(leases[i].from)
			bound := float64(burst) + limitRate*span.Seconds()
			worst = max(worst, float64(j-i+1)/bound)
			if float64(j-i+1) > bound { // an assertion for each of ten million spans takes a minute
				require.FailNow(t, "the limit does not hold", "%d messages are leased in %v from %v on, and may be %.1f", j-i+1, span, leases[i].from, bound)
			}
		}
	}
	require.LessOrEqual(t, l.most, limitAtOnce)
	used := float64(len(leases)) / leases[len(leases)-1].at.Sub(leases[0].at).Seconds()
	faulttest.Report(t, fmt.Sprintf("%d leases, at most %.3f of the bound, %d at once, %.0f a second", len(leases), worst, l.most, used))
}
