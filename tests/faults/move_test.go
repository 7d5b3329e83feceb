package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// moveVariable has "<from> <to> <call> <when> <address> ..." for a process that only moves
// messages. It kills itself at that call of a script of the move: before it, or after the server
// ran it.
// Several addresses are those of a Cluster.
const moveVariable = "REDISDELAY_FAULTS_MOVE"

// moveAndDie is such a process. It returns if the move was done before that call.
func moveAndDie(text string) int {
	part := strings.Fields(text)
	at, calls := 0, 0
	if _, err := fmt.Sscan(part[2], &at); err != nil {
		return 2
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: part[4:], IsClusterMode: len(part) > 5})
	die := func() {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	}
	client.AddHook(redistest.Hook(func(_ context.Context, sent []redis.Cmder, next func() error) error {
		args := sent[0].Args()
		if len(args) < 2 || !slices.Contains([]string{"gather", "adopt", "depart", "arrive"}, queue.ScriptName(fmt.Sprint(args[1]))) {
			return next()
		}
		if calls++; calls == at && part[3] == "before" {
			die()
		}
		err := next()
		if calls == at {
			die()
		}
		return err
	}))
	a, err := admin.New(admin.Config{Client: client})
	if err == nil {
		_, err = a.Move(context.Background(), part[0], admin.Moving{To: part[1]})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// killedMove runs a process that moves messages, and is killed at a call or ends before it.
func killedMove(t *testing.T, from, to string, call int, when string, addrs ...string) (killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %s %s", moveVariable, from, to, call, when, strings.Join(addrs, " ")))
	out, err := cmd.CombinedOutput()
	failed := (*exec.ExitError)(nil)
	if errors.As(err, &failed) && !failed.Exited() {
		return true
	}
	require.NoError(t, err, string(out))
	return false
}

// holding is all that a topic has of a message, but for its due time if it waits or retries.
type holding struct {
	has  string
	dues map[string]float64 // by group; "" if it waits
}

// holdings reads all messages of a topic that no group has ready or in hand.
func holdings(t *testing.T, client redis.UniversalClient, topic string, groups ...string) map[string]holding {
	t.Helper()
	k, c := queue.NewKeys(redisdelay.DefaultKeyPrefix, topic), t.Context()
	bodies, options := client.HGetAll(c, k.Messages()).Val(), client.HGetAll(c, k.Options()).Val()
	refs, names := client.HGetAll(c, k.Refs()).Val(), client.HGetAll(c, k.Names()).Val()
	all := map[string]holding{}
	for id, body := range bodies {
		h := holding{has: fmt.Sprintf("%q %q %q", body, options[id], refs[id]), dues: map[string]float64{}}
		if name := queue.ParseOptions(options[id]).DelayID; name != "" && names[queue.EncodeName(name)] == id {
			h.has += fmt.Sprintf(" free at %f", client.ZScore(c, k.Taken(), queue.EncodeName(name)).Val())
		}
		all[id] = h
	}
	for _, z := range client.ZRangeWithScores(c, k.Pending(), 0, -1).Val() {
		all[z.Member.(string)].dues[""] = z.Score
	}
	for _, group := range groups {
		records := client.HGetAll(c, k.Deliveries(group)).Val()
		for _, z := range client.ZRangeWithScores(c, k.Retry(group), 0, -1).Val() {
			all[z.Member.(string)].dues[group] = z.Score
		}
		dead := map[string]float64{}
		for _, z := range client.ZRangeWithScores(c, k.Dead(group), 0, -1).Val() {
			dead[z.Member.(string)] = z.Score
		}
		for id, h := range all {
			h.has += fmt.Sprintf(" %s: %q dead %f", group, records[id], dead[id])
			all[id] = h
		}
	}
	return all
}

// soonest is when the first message is due. A move holds it back, and none is due before long.
const soonest = 45 * time.Second

// fillToMove has messages wait in a topic, soon and later, some under delay IDs. Others retry or
// are dead, in one group or two.
func fillToMove(t *testing.T, client redis.UniversalClient, topic string) {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	publish := func(name string, due time.Duration) {
		msg := message.NewMessage(name, []byte(name))
		redisdelay.DelayFor(msg, due)
		if len(name)%2 == 0 {
			redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
		}
		redisdelay.ExpireAfter(msg, time.Hour, redisdelay.ExpiryDrop)
		require.NoError(t, publisher.Publish(topic, msg))
	}
	for i := range 40 {
		publish(fmt.Sprint("now ", i), 0)
	}
	for _, group := range []string{"a", "b"} {
		fail(t, client, topic, group, 40, func(i int) queue.Failure {
			return queue.Failure{Reason: "it failed in " + group, Limit: -1, Retry: queue.In([]time.Duration{10 * time.Second, time.Hour}[i%2]),
				Dead: i%3 == 0 || i%5 == 0 && group == "a"}
		})
	}
	for i := range 170 {
		publish(fmt.Sprint("later ", i), time.Duration(i)*time.Second+soonest)
	}
	require.NoError(t, publisher.Close())
}

// fail has a group take n messages in hand, and fail each as failure says.
func fail(t *testing.T, client redis.UniversalClient, topic, group string, n int, failure func(i int) queue.Failure) {
	t.Helper()
	g := queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, topic).Group(group)
	claim := queue.Claim{Subscription: queue.Token(), Number: 1, Limit: n, Lease: time.Hour, Bytes: 1 << 20}
	call := g.ClaimCall(claim)
	require.NoError(t, queue.Do(t.Context(), servers.MustClient(client), call))
	claimed, err := claim.ReadClaim(call.Cmd())
	require.NoError(t, err)
	require.Len(t, claimed.Messages, n)
	var failures []queue.Failure
	for i := range claimed.Messages {
		f := failure(i)
		f.Leased = &claimed.Messages[i]
		failures = append(failures, f)
	}
	require.NoError(t, queue.Do(t.Context(), servers.MustClient(client), g.NackCalls(failures)...))
}

// movesAndDies moves all that a topic has to another and back, each time with one or two processes
// that are killed. It compares what is in both topics with what there was.
func movesAndDies(t *testing.T, client redis.UniversalClient, rounds int, topics [2]string, addrs ...string) {
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	kills, both, late, filled := 0, 0, 0, time.Time{}
	from, to := topics[1], topics[0]
	for kills < rounds {
		if from, to = to, from; time.Since(filled) > soonest/3 { // a delay ID is free from the due time on
			from, to = topics[0], topics[1]
			for _, topic := range topics {
				if _, err := a.DeleteTopic(t.Context(), topic, admin.DeleteOptions{}); err != nil {
					require.ErrorIs(t, err, admin.ErrNotFound)
				}
				for _, group := range []string{"a", "b"} {
					s := newSubscriber(t, redisdelay.SubscriberConfig{Client: client, ConsumerGroup: group, TakeoverWindow: -1})
					require.NoError(t, s.SubscribeInitialize(topic))
				}
			}
			filled = time.Now()
			fillToMove(t, client, from)
		}
		before := holdings(t, client, from, "a", "b")
		require.Len(t, before, 210)
		for range 1 + random.IntN(2) {
			if killedMove(t, from, to, 1+random.IntN(13), []string{"before", "after"}[random.IntN(2)], addrs...) {
				kills++
			}
			here, there := holdings(t, client, from, "a", "b"), holdings(t, client, to, "a", "b")
			for id := range before {
				_, is := here[id]
				copied, comes := there[id]
				require.True(t, is || comes, "message %s is in no topic", id)
				if is && comes {
					both++
				}
				if is {
					require.Equal(t, before[id], here[id])
				}
				for group, due := range copied.dues {
					require.GreaterOrEqual(t, due, before[id].dues[group], "a copy is never early")
				}
			}
			queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
		}
		killed := time.Now()
		stayed := holdings(t, client, from, "a", "b")
		moved, err := a.Move(t.Context(), from, admin.Moving{To: to})
		require.NoError(t, err)
		require.Equal(t, len(stayed), moved.Messages)
		require.Empty(t, moved.Stay)
		require.Empty(t, holdings(t, client, from, "a", "b"))
		after := holdings(t, client, to, "a", "b")
		require.Len(t, after, len(before))
		for id, was := range before {
			is := after[id]
			for group, due := range was.dues {
				switch _, stays := stayed[id]; {
				case is.dues[group] == due:
				case stays, due > float64(killed.Add(time.Minute).UnixMilli()):
					require.Equal(t, due, is.dues[group], "message %s in group %q", id, group)
				default: // it left, and the process that was killed could not release it
					late++
					require.InDelta(t, float64(killed.UnixMilli()), is.dues[group], 61_000)
					is.has = was.has // its delay ID stays taken until then
				}
			}
			require.Equal(t, was.has, is.has)
		}
		queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
	}
	require.Positive(t, both, "some kill left messages in both topics")
	faulttest.Report(t, fmt.Sprintf("%d kills of moves of 210 messages; messages in no topic: 0; found in both by the next move: %d; late by up to a minute: %d", kills, both, late))
}

func TestAMoveThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a move between topics, at each of its calls: each message is in one topic at least, and in one when the move is called again")
	server := redistest.Start(t)
	movesAndDies(t, server.Client(t), faulttest.Pick(6, 40), [2]string{"old", "new"}, server.Addr())
}

func TestAMoveBetweenNodesThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a move between topics that two nodes of a Cluster have: the same")
	c := redistest.StartCluster(t)
	node := func(topic string) *redistest.Instance {
		in, _ := c.Owner(queue.NewKeys(redisdelay.DefaultKeyPrefix, topic).Meta())
		return in
	}
	topics := [2]string{"old", "new"}
	for i := 0; node(topics[0]) == node(topics[1]); i++ {
		topics[1] = fmt.Sprint("new", i)
	}
	movesAndDies(t, c.Client(t), faulttest.Pick(3, 12), topics, c.Addrs()...)
}

// While subscribers of both topics work and publishers go on, moves are killed. Each message comes.
func TestAMoveThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of moves of a topic in use, with subscribers of both topics: nothing is lost, and what is late is so by a minute")
	server := redistest.Start(t)
	client := server.Client(t)
	var mu sync.Mutex
	got := map[string]int{}
	for _, topic := range []string{"old", "new"} {
		s := newSubscriber(t, redisdelay.SubscriberConfig{Client: client, ConsumerGroup: "a", MaxInFlight: 50, Backoff: func(int) time.Duration { return 2 * time.Second }})
		messages, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		go func() {
			for msg := range messages {
				d, _ := redisdelay.DeliveryFromContext(msg.Context())
				if d.Number == 1 && len(msg.UUID)%2 == 0 {
					msg.Nack()
					continue
				}
				mu.Lock()
				got[msg.UUID]++
				mu.Unlock()
				msg.Ack()
			}
		}()
	}
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	rounds, sent, kills := faulttest.Pick(2, 12), 0, 0
	for round := range rounds {
		var messages []*message.Message
		for i := range 300 {
			msg := message.NewMessage(fmt.Sprint(sent), []byte("x"))
			redisdelay.DelayFor(msg, time.Duration(i)*20*time.Millisecond)
			messages = append(messages, msg)
			sent++
		}
		require.NoError(t, publisher.Publish("old", messages...))
		if killedMove(t, "old", "new", 2+round%11, []string{"before", "after"}[round%2], server.Addr()) {
			kills++
		}
		_, err := a.Move(t.Context(), "old", admin.Moving{To: "new"})
		require.NoError(t, err)
	}
	require.NoError(t, publisher.Close())
	count := func() (messages, twice int) {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range got {
			if n > 1 {
				twice++
			}
		}
		return len(got), twice
	}
	faulttest.Eventually(t, func() bool { n, _ := count(); return n == sent }, 2*time.Minute, 50*time.Millisecond, "every message came")
	_, twice := count()
	queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
	faulttest.Report(t, fmt.Sprintf("%d kills, %d messages, lost 0, handled twice %d", kills, sent, twice))
}
