package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Messages that a killed process had in hand come back within three seconds, whatever the lease is.
// On a machine that runs other tests too it may take five.
func TestAKilledProcessKeepsNothing(t *testing.T) {
	t.Parallel()
	const lease = 30_000
	one := faulttest.Worker{Role: faulttest.Consumer, Stuck: true, LeaseMS: lease}
	many := one
	many.InFlight = 256
	active := one
	active.SingleActive = true
	parts := active
	parts.Partitions, parts.InFlight = 3, 64
	single := func(t *testing.T) faulttest.Place { return faulttest.At(redistest.Start(t).Addr()) }
	for name, c := range map[string]struct {
		place  func(*testing.T) faulttest.Place
		victim faulttest.Worker
		inHand int
		other  bool          // another process does the due-time work
		idle   bool          // who takes over is there
		later  time.Duration // the new process comes so long after the kill
	}{
		"one of three, with one message":       {place: single, victim: one, inHand: 1, other: true, idle: true},
		"one of three, with 256 messages":      {place: single, victim: many, inHand: 256, other: true, idle: true},
		"the one that schedules":               {place: single, victim: one, inHand: 1, idle: true},
		"the one that schedules, with 256":     {place: single, victim: many, inHand: 256, idle: true},
		"the only one, and a new one later":    {place: single, victim: many, inHand: 256, later: time.Second},
		"the active one of a group":            {place: single, victim: active, inHand: 1, other: true, idle: true},
		"the active one of three partitions":   {place: single, victim: parts, inHand: 30, other: true, idle: true},
		"behind Sentinels, one of three":       {place: behindSentinels, victim: many, inHand: 256, other: true, idle: true},
		"of a Cluster, one of three":           {place: inCluster, victim: many, inHand: 256, other: true, idle: true},
		"of a Cluster, the one that schedules": {place: inCluster, victim: one, inHand: 1, idle: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "kill -9 of a consumer with its messages in hand, at the default lease: they come to another within three seconds")
			place := c.place(t)
			slowest := time.Duration(0)
			for range faulttest.Pick(1, 50) {
				slowest = max(slowest, killed(t, place, c.victim, c.inHand, c.other, c.idle, c.later))
			}
			require.Less(t, slowest, faulttest.Pick(5*time.Second, 3*time.Second)+c.later)
			faulttest.Report(t, fmt.Sprintf("%d in hand, back after %v at most", c.inHand, slowest.Round(time.Millisecond)))
		})
	}
}

func inCluster(t *testing.T) faulttest.Place {
	return faulttest.Place{Addrs: redistest.StartCluster(t).Addrs(), Cluster: true}
}

func behindSentinels(t *testing.T) faulttest.Place {
	primary, others := redistest.StartReplicated(t, 2)
	return faulttest.Place{Addrs: redistest.StartSentinels(t, primary, others...), MasterName: redistest.PrimaryName}
}

// killed kills a process with messages in hand, and returns how long it takes until all of them are
// in other hands.
func killed(t *testing.T, place faulttest.Place, victim faulttest.Worker, inHand int, other, idle bool, later time.Duration) time.Duration {
	t.Helper()
	prefix := "p" + queue.Token()
	w := faulttest.NewWorld(t, place, func(w *faulttest.World) {
		w.Prefix, w.Groups, w.SingleActive = prefix, []string{"g", "h"}, victim.SingleActive
	})
	var all []*faulttest.Running
	if other { // who subscribes first does the due-time work of the topic, for all groups
		scheduler := faulttest.Worker{Role: faulttest.Consumer, Name: "scheduler", Group: "h", SingleActive: victim.SingleActive, Partitions: victim.Partitions}
		all = append(all, w.Start(scheduler)...)
		w.AwaitEvents(faulttest.Answer, 1)
	}
	victim.Name = "victim"
	running := w.Start(victim)[0]
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: inHand, Partitions: victim.Partitions, Keys: 3 * victim.Partitions, Rounds: 1})...)
	held := func() int { return w.CountOf(faulttest.Start, "victim") }
	faulttest.Eventually(t, func() bool { return held() >= inHand }, time.Minute, time.Millisecond)
	successor := victim
	successor.Name = "successor"
	if idle {
		all = append(all, w.Start(successor)...)
		w.AwaitEvents(faulttest.Answer, 2)
	}
	began := time.Now()
	running.Kill()
	if !idle {
		time.Sleep(later)
		all = append(all, w.Start(successor)...)
	}
	faulttest.Eventually(t, func() bool { return w.CountOf(faulttest.Start, "successor") >= inHand }, time.Minute, time.Millisecond)
	back := time.Since(began)
	w.StopLooking()
	for _, r := range all {
		r.Kill()
	}
	return back
}

// While the process that schedules a topic dies with messages in hand, other messages go on.
func TestOthersAreOnTimeWhileAProcessDies(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of the process that schedules, with messages in hand: fresh messages pass at once, delayed ones a second later at most")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()), func(w *faulttest.World) { w.Prefix, w.Groups = "p"+queue.Token(), []string{"g", "h"} })
	victim := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "victim", Stuck: true, LeaseMS: 30_000, InFlight: 30})[0]
	w.AwaitEvents(faulttest.Answer, 1)
	client := server.Client(t)
	s, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, KeyPrefix: w.Prefix, ConsumerGroup: "h", MaxInFlight: 50}, nil)
	require.NoError(t, err)
	defer s.Close()
	messages, err := s.Subscribe(t.Context(), w.Topics[0])
	require.NoError(t, err)
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, KeyPrefix: w.Prefix}, nil)
	require.NoError(t, err)
	defer p.Close()

	const n, wait = 1000, 300 * time.Millisecond
	var fresh, delayed []time.Duration
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		for range 2 * n {
			msg := <-messages
			due, _ := strconv.ParseInt(string(msg.Payload), 10, 64)
			late := time.Since(time.UnixMicro(due))
			if msg.Metadata.Get("delayed") == "" {
				fresh = append(fresh, late)
			} else {
				delayed = append(delayed, late)
			}
			msg.Ack()
		}
	}()
	for i := range n {
		if i == n/5 {
			victim.Kill()
		}
		now := time.Now()
		at := func(due time.Time) *message.Message {
			return message.NewMessage(watermill.NewUUID(), []byte(strconv.FormatInt(due.UnixMicro(), 10)))
		}
		later := at(now.Add(wait))
		later.Metadata.Set("delayed", "1")
		redisdelay.DelayFor(later, wait)
		require.NoError(t, p.Publish(w.Topics[0], at(now), later))
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case <-handled:
	case <-time.After(time.Minute):
		require.Fail(t, "messages are missing")
	}
	slices.Sort(fresh)
	p99, latest := fresh[len(fresh)*99/100], slices.Max(delayed)
	faulttest.Report(t, fmt.Sprintf("p99 of fresh messages %v; delayed ones %v late at most", p99.Round(time.Millisecond), latest.Round(time.Millisecond)))
	require.Less(t, p99, faulttest.Pick(time.Second, 50*time.Millisecond))
	require.Less(t, latest, faulttest.Pick(3*time.Second, 1100*time.Millisecond))
	w.StopLooking()
}

// lossy passes connections on to a server.
type lossy struct {
	addr string

	mu    sync.Mutex
	all   map[net.Conn]bool // to the server; true: it has subscribed
	deaf  bool              // it ends connections that subscribe at the server, and leaves the client's open
	apart bool              // it has no connections
}

func newLossy(t *testing.T, server string) *lossy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &lossy{addr: listener.Addr().String(), all: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil || !l.takes(up) {
				_ = client.Close()
				continue
			}
			running.Go(func() {
				buf := make([]byte, 64*1024)
				for {
					n, err := client.Read(buf)
					if bytes.Contains(buf[:n], []byte("subscribe")) {
						l.mu.Lock()
						if l.all[up] = true; l.deaf {
							_ = up.Close()
						}
						l.mu.Unlock()
					}
					if n > 0 {
						_, _ = up.Write(buf[:n]) // it may be deaf
					}
					if err != nil {
						_ = up.Close()
						return
					}
				}
			})
			running.Go(func() {
				_, _ = io.Copy(client, up)
				l.mu.Lock()
				hides := l.all[up] && l.deaf
				delete(l.all, up)
				l.mu.Unlock()
				if !hides {
					_ = client.Close()
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.change(func() { l.apart = true })
	})
	return l
}

// takes notes a connection, unless there are to be none.
func (l *lossy) takes(up net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.apart {
		_ = up.Close()
		return false
	}
	l.all[up] = false
	return true
}

// change changes what is passed on, and ends connections accordingly.
func (l *lossy) change(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	for up, listens := range l.all {
		if l.apart || l.deaf && listens {
			_ = up.Close()
		}
	}
}

// A process that lives keeps what it has in hand, whatever becomes of its Pub/Sub connection.
func TestAProcessThatLivesKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	kill := func(server *redistest.Instance, client redis.UniversalClient, _ *lossy) {
		_ = client.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Err()
	}
	for name, c := range map[string]struct {
		every  time.Duration
		attack func(*redistest.Instance, redis.UniversalClient, *lossy)
		after  func(redis.UniversalClient)
	}{
		"CLIENT KILL each 20 ms":                  {20 * time.Millisecond, kill, nil},
		"CLIENT KILL each 900 ms":                 {900 * time.Millisecond, kill, nil},
		"CLIENT KILL each 1700 ms":                {1700 * time.Millisecond, kill, nil},
		"a proxy that keeps its connections open": {time.Second, func(_ *redistest.Instance, _ redis.UniversalClient, l *lossy) { l.change(func() { l.deaf = true }) }, nil},
		"a user who may not subscribe any more": {time.Second, func(server *redistest.Instance, client redis.UniversalClient, _ *lossy) {
			_ = client.Do(context.Background(), "ACL", "SETUSER", "worker", "resetchannels").Err()
			kill(server, client, nil)
		}, nil},
		"no connection is left": {time.Second, func(server *redistest.Instance, client redis.UniversalClient, _ *lossy) {
			_ = client.ConfigSet(context.Background(), "maxclients", "5").Err()
			kill(server, client, nil)
		}, func(client redis.UniversalClient) {
			_ = client.ConfigSet(context.Background(), "maxclients", "1000").Err()
		}},
		"the server starts anew, and the process comes back later": {6 * time.Second, func(server *redistest.Instance, _ redis.UniversalClient, l *lossy) {
			l.change(func() { l.apart = true })
			server.Kill()
			server.Restart()
			time.Sleep(4 * time.Second)
			l.change(func() { l.apart = false })
		}, nil},
		"the server starts anew": {1500 * time.Millisecond, func(server *redistest.Instance, _ redis.UniversalClient, _ *lossy) {
			server.Kill()
			server.Restart()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "a process that lives, and whose Pub/Sub connection is cut again and again: nothing that it has in hand comes twice")
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", // the user outlives a restart
				"--user", "worker", "on", ">secret", "~*", "&*", "+@all")
			operator := server.Client(t)
			l := newLossy(t, server.Addr())
			worker := redis.NewClient(&redis.Options{Addr: l.addr, Username: "worker", Password: "secret"})
			keeps := holdsThree(t, operator, worker)
			attacks := every(c.every, func() { c.attack(server, operator, l) })
			time.Sleep(faulttest.Pick(7*time.Second, 2*time.Minute))
			n := attacks()
			if c.after != nil {
				c.after(operator)
			}
			keeps()
			faulttest.Report(t, fmt.Sprintf("%d times", n))
		})
	}
}

// holdsThree has a process hold three messages, while another waits for messages. The function that
// it returns checks that they did not come to the other one, and that the process still has them.
func holdsThree(t *testing.T, operator, worker redis.UniversalClient) (keeps func()) {
	t.Helper()
	t.Cleanup(func() { _ = worker.Close() })
	subscribe := func(client redis.UniversalClient) <-chan *message.Message {
		s, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, MaxInFlight: 3, CloseTimeout: time.Second}, watermill.NopLogger{})
		require.NoError(t, err)
		messages, err := s.Subscribe(t.Context(), "t")
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return messages
	}
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: operator}, nil)
	require.NoError(t, err)
	defer p.Close()
	has := subscribe(worker)
	var inHand []*message.Message
	for i := range 3 {
		require.NoError(t, p.Publish("t", message.NewMessage(fmt.Sprint(i), nil)))
		inHand = append(inHand, <-has)
	}
	var twice atomic.Int32
	other := subscribe(operator)
	go func() {
		for msg := range other {
			twice.Add(1)
			msg.Ack()
		}
	}()
	return func() {
		t.Helper()
		stats := operator.HMGet(context.Background(), queue.NewKeys("redisdelay", "t").Stats("default"), "expired", "disowned", "lease_lost").Val()
		require.Zero(t, twice.Load(), "expired, disowned and lost leases: %v", stats)
		for _, msg := range inHand {
			require.NoError(t, msg.Context().Err())
			msg.Ack()
		}
	}
}

// In a Cluster the connection goes with the topic.
func TestAProcessOfAClusterThatLivesKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	const key = "{t}"
	for name, attack := range map[string]func(t *testing.T, c *redistest.Cluster){
		"failover there and back": func(t *testing.T, c *redistest.Cluster) {
			owner, replica := c.Owner(key)
			takeOver(t, replica)
			owner.AwaitInfo("role:slave")
			owner.AwaitInfo("master_link_status:up")
		},
		"slots that move there and back": func(t *testing.T, c *redistest.Cluster) {
			from, _ := c.Owner(key)
			to := c.Primaries[0]
			if to == from {
				to = c.Primaries[1]
			}
			moveSlot(t, c, key, to).finish()
		},
		"CLIENT KILL": func(t *testing.T, c *redistest.Cluster) {
			for _, in := range c.Nodes() {
				client := in.Client(t)
				_ = client.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Err()
				_ = client.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "a process of a Cluster that lives, and whose topic goes from node to node: nothing that it has in hand comes twice")
			cluster := redistest.StartCluster(t)
			keeps := holdsThree(t, cluster.Client(t), cluster.Client(t))
			n := 0
			for began := time.Now(); n == 0 || n%2 != 0 || time.Since(began) < faulttest.Pick(5*time.Second, 2*time.Minute); n++ {
				attack(t, cluster)
				time.Sleep(3 * time.Second) // nodes vote about a primary once in twice their timeout
			}
			keeps()
			faulttest.Report(t, fmt.Sprintf("%d times", n))
		})
	}
}
