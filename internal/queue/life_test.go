package queue_test

import (
	"bufio"
	"errors"
	"fmt"
	"iter"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// live takes messages through every transition, of several topics, with the wake-ups between
// processes.
func live(t *testing.T, s redistest.Server) {
	m, closeMailbox := wake.Open(servers.MustClient(s.Client), s.Prefix)
	defer closeMailbox()
	for i := range 3 { // on a cluster, each is in a slot of its own
		w := newWorld(t, s, fmt.Sprintf("topic {%d}", i), "a", "b")
		w.live(m)
		w = newWorld(t, s, fmt.Sprintf("operated {%d}", i), "a", "b")
		w.operate()
		newWorld(t, s, fmt.Sprint("stream ", i)).streaming(kept).flow()
		newWorld(t, s, fmt.Sprintf("recurring {%d}", i), "a").recur()
		newWorld(t, s, fmt.Sprintf("single {%d}", i)).takeTurns(m)
		w = newWorld(t, s, fmt.Sprintf("limited {%d}", i))
		holder, claimed := w.limits()
		w.setLimit("c", &queue.GroupLimit{AtOnce: 9})
		w.count(holder.group.ReleaseCalls(claimed, true)...)
		holder.claim(0)
		require.NoError(t, w.topic.Remove(ctx, "c"))
		require.NoError(t, w.Client.Del(ctx, w.keys.Claim("SUB2")).Err())
	}
	queuetest.CheckDrained(t, s.Client, s.Prefix)
}

func (w *world) live(m *wake.Mailbox) {
	receive := func() *queuetest.Receiver { return queuetest.ReceiveFor(w.t, m, w.topic.Topic) }
	subscriber, holder, standby := receive(), receive(), receive()
	for _, r := range []*queuetest.Receiver{subscriber, holder, standby} {
		defer r.Stop()
		r.Connected(w.Client)
	}
	w.topic = topicOf(w.Client, w.Prefix, w.topic.Name) // of another process
	_, err := new(rights.Permits).Try(ctx, w.topic.Topic, rights.Consuming)
	require.NoError(w.t, err)
	require.Equal(w.t, queue.Holder, w.promote(holder.Address).Role)
	require.Equal(w.t, queue.Standby, w.promote(standby.Address).Role)

	a, b := w.sub("a"), w.sub("b")
	woken := func() {
		w.t.Helper()
		require.Equal(w.t, "", subscriber.Argument())
	}
	waits := func() {
		w.t.Helper()
		require.True(w.t, a.claim(9, idle(9, subscriber.Address)).Waits)
	}

	// Published, delayed and direct.
	waits()
	w.publish(now("1").with(queue.Options{MaxDeliveries: 1}), now("2"), in("3", 20*time.Millisecond))
	woken()
	require.NotEmpty(w.t, holder.Argument())
	require.NotEmpty(w.t, standby.Argument())
	claimed := held(a.claim(9))
	require.Len(w.t, claimed, 2)
	w.do(a.group.ExtendCalls(claimed, time.Minute)...)

	// Nacked without and with delay, and released.
	waits()
	require.Equal(w.t, 2, a.nack(failed(claimed[0]), failed(claimed[1], after(time.Millisecond))))
	woken()
	claimed = held(a.claim(9))
	waits()
	require.Equal(w.t, 1, a.release(claimed...))
	woken()

	// Promoted.
	claimed = held(a.claim(9))
	waits()
	w.passUntil(int64(max(w.score(w.keys.Pending(), "3"), w.score(w.keys.Retry("a"), "2"))))
	w.promote(holder.Address)
	woken()
	require.ElementsMatch(w.t, []string{"2", "3"}, w.ready("a"))
	require.Equal(w.t, 1, a.release(claimed...))

	// Expired, until it is dead.
	for range 3 {
		require.Equal(w.t, []string{"1"}, bodies(a.claim(1, lease(time.Millisecond))))
		w.pass(3 * time.Millisecond)
		require.True(w.t, w.promote(holder.Address).Expired)
		require.False(w.t, w.expire())
	}
	require.Equal(w.t, []string{"1"}, w.dead("a"))

	// Looked at, whether the processes that have them are there.
	require.NoError(w.t, only(w.watch()))
	require.NoError(w.t, only(w.topic.Disown(ctx, "a", a.id)))
	require.NoError(w.t, a.group.Sign(ctx, a.id, queue.Sign("a|1", time.Minute)))

	// Acked in one group after the other, and purged.
	for _, s := range []*sub{a, b} {
		for {
			claimed := s.claim(9)
			if len(claimed.Messages) == 0 {
				break
			}
			require.Equal(w.t, len(claimed.Messages), s.ack(held(claimed)...))
		}
	}
	require.Equal(w.t, []string{"1"}, w.stored())
	require.NoError(w.t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 5, Retention: time.Millisecond}))
	w.pass(3 * time.Millisecond)
	require.True(w.t, w.promote(holder.Address).Purge)
	require.False(w.t, w.purge())

	// A group that nobody uses, and its end.
	w.registerFor("short-lived", queue.GroupOptions{Expiry: time.Millisecond})
	w.publish(now("4").with(queue.Options{MaxDeliveries: 1}))
	for _, s := range []*sub{a, b} {
		require.Equal(w.t, 1, s.ack(held(s.claim(9))...))
		require.Empty(w.t, s.claim(9).Messages)
	}
	w.pass(3 * time.Millisecond)
	require.Equal(w.t, []string{"short-lived"}, w.promote(holder.Address).Unused)
	w.endUnused("short-lived")

	require.NoError(w.t, w.topic.NoteFault(ctx, errors.New("it failed once")))
	w.do(w.topic.ResignCall(holder.Address))
	for standby.Argument() != "0" {
	}
	require.Equal(w.t, queue.Holder, w.promote(standby.Address).Role)
	a.claim(0, idle(0, subscriber.Address))
}

func TestLifeOfMessages(t *testing.T) {
	redistest.Both(t, live)
}

func TestLifeOfMessagesOnACluster(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--cluster-enabled", "yes")
	node := in.Client(t)
	for slots := range slices.Chunk(slotNumbers(), 1024) {
		require.NoError(t, node.ClusterAddSlots(ctx, slots...).Err())
	}
	require.Eventually(t, func() bool {
		return strings.Contains(node.ClusterInfo(ctx).Val(), "cluster_state:ok")
	}, patience, 10*time.Millisecond)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{in.Addr()}})
	defer client.Close()
	live(t, redistest.Server{Client: client, Prefix: "own"})
	require.NotEqual(t, slotOf("topic %7B0%7D"), slotOf("topic %7B1%7D"))
}

func slotNumbers() []int {
	slots := make([]int, 16384)
	for i := range slots {
		slots[i] = i
	}
	return slots
}

func TestLifeOfMessagesOfAUserWhoMayOnlyUseThePrefix(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "~own-*", "resetchannels", "&own:*", "+@all", "-@dangerous", "-@admin").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	live(t, redistest.Server{Client: user, Prefix: "own"})
}

// A server that is asked to tells every command, those of scripts after the call of the script.
func TestScriptsTouchOnlyKeysThatTheyDeclare(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	commands := monitor(t, in)
	live(t, redistest.Server{Client: in.Client(t), Prefix: "own"})

	declared, script, used := map[string]bool{}, "", map[string]int{}
	for words, lua := range commands() {
		switch {
		case !lua:
			if words[0] != "evalsha" && words[0] != "eval" {
				continue
			}
			script, declared = words[1], map[string]bool{}
			n, err := strconv.Atoi(words[2])
			require.NoError(t, err)
			for _, key := range words[3 : 3+n] {
				declared[key] = true
			}
		case words[0] == "PUBLISH" || words[0] == "TIME" || words[0] == "INFO" || words[0] == "PUBSUB":
		default:
			used[script]++
			if !declared[words[1]] {
				t.Errorf("%.200q uses %q, which it does not declare: %q", script, words[1], words)
			}
		}
	}
	require.Len(t, used, len(queue.Scripts()), "every script was seen")
}

// monitor has the server tell every command. Those until the call of commands are in what that
// returns.
func monitor(t *testing.T, in *redistest.Instance) (commands func() iter.Seq2[[]string, bool]) {
	t.Helper()
	conn, err := net.Dial("tcp", in.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewReaderSize(conn, 1<<20)
	_, err = lines.ReadString('\n') // OK
	require.NoError(t, err)
	return func() iter.Seq2[[]string, bool] {
		require.NoError(t, in.Client(t).Echo(ctx, "the end").Err())
		return func(yield func(words []string, lua bool) bool) {
			for {
				line, err := lines.ReadString('\n')
				require.NoError(t, err)
				words, lua := monitored(t, line)
				if words[0] == "echo" || !yield(words, lua) {
					return
				}
			}
		}
	}
}

var quoted = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)

// monitored takes a line apart, such as: +1700000000.123456 [0 lua] "HGET" "key" "field"
func monitored(t *testing.T, line string) (words []string, lua bool) {
	t.Helper()
	head, _, _ := strings.Cut(line, "]")
	for _, m := range quoted.FindAllString(line, -1) {
		word, err := strconv.Unquote(m)
		require.NoError(t, err, line)
		words = append(words, word)
	}
	require.NotEmpty(t, words, line)
	return words, strings.HasSuffix(head, " lua")
}

// Addresses go through scripts, which take them apart.
func TestPublishWakesAReceiverOfAMailbox(t *testing.T) {
	for _, prefix := range []string{"plain", "with|bar", "with space"} {
		t.Run(prefix, func(t *testing.T) {
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				s.Prefix += prefix
				w := newWorld(t, s, "topic", "a")
				m, closeMailbox := wake.Open(servers.MustClient(s.Client), s.Prefix)
				defer closeMailbox()
				subscriber, scheduler := queuetest.Receive(t, m), queuetest.Receive(t, m)
				subscriber.Connected(s.Client)
				scheduler.Connected(s.Client)
				require.True(t, w.sub("a").claim(1, idle(1, subscriber.Address)).Waits)
				require.Equal(t, queue.Holder, w.promote(scheduler.Address).Role)
				w.publish(now("x"), at("y", w.now()+10_000))
				require.Equal(t, "", <-subscriber.Woken)
				var ms int
				_, err := fmt.Sscan(<-scheduler.Woken, &ms)
				require.NoError(t, err)
				require.Greater(t, ms, 0)
				require.LessOrEqual(t, ms, 10_000)
			})
		})
	}
}
