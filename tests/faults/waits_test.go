package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// waitsVariable has the waitsRun of a process that only changes messages that wait.
const waitsVariable = "REDISDELAY_FAULTS_WAITS"

// waitsRun is what such a process does. It ends its work when it kills itself, or when all is done.
type waitsRun struct {
	Topic, Act, Listing string
	Due                 time.Time // of "to"
	Addrs               []string  // several are those of a Cluster

	// Call is the chunk at which it kills itself: before it is sent, after it is answered, or
	// anywhere between. 0 is never.
	Call int
	When string
}

// movedBy is by how much "by" moves due times.
const movedBy = 2 * time.Hour

// waitActs are the acts. "back" undoes what the one before has done.
var waitActs = faulttest.Pick([]string{"by", "cancel"}, []string{"by", "back", "to", "back", "cancel"})

// bulk returns what a run changes.
func (r waitsRun) bulk() admin.Bulk {
	bulk := admin.Bulk{States: []admin.State{admin.Waiting, admin.Retrying}, Group: "a", Listed: listedIn(r.Listing)}
	switch r.Act {
	case "by":
		bulk.By = movedBy
	case "to":
		bulk.When = admin.At(r.Due)
	case "back":
		bulk.Back = true
	}
	return bulk
}

// listedIn reads messages from a file, as an operator's program does.
func listedIn(name string) iter.Seq2[admin.Message, error] {
	return func(yield func(admin.Message, error) bool) {
		file, err := os.Open(name)
		if err != nil {
			yield(admin.Message{}, err)
			return
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			var m admin.Message
			if err := json.Unmarshal(lines.Bytes(), &m); !yield(m, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(admin.Message{}, err)
		}
	}
}

// changeAndDie is such a process. It prints its progress if it comes to its end.
func changeAndDie(text string) int {
	var r waitsRun
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return 2
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: r.Addrs, IsClusterMode: len(r.Addrs) > 1})
	kill := func() {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	}
	calls := 0
	client.AddHook(redistest.Hook(func(_ context.Context, sent []redis.Cmder, next func() error) error {
		args := sent[0].Args()
		if len(args) < 2 || !slices.Contains([]string{"cancel", "reschedule"}, queue.ScriptName(fmt.Sprint(args[1]))) {
			return next()
		}
		calls++
		switch {
		case calls != r.Call:
			return next()
		case r.When == "before":
			kill()
		case r.When == "between":
			go func() {
				time.Sleep(rand.N(2 * time.Millisecond)) // which takes it to any step of the chunk
				kill()
			}()
		}
		err := next()
		kill()
		return err
	}))
	a, err := admin.New(admin.Config{Client: client})
	var last admin.Progress
	if err == nil {
		do := a.RescheduleAll
		if r.Act == "cancel" {
			do = a.CancelAll
		}
		bulk := r.bulk()
		bulk.Progress = func(p admin.Progress) { last = p }
		_, err = do(context.Background(), r.Topic, bulk)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(last)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// start runs such a process, which is killed or comes to its end.
func (r waitsRun) start(t *testing.T) (killed bool, last admin.Progress) {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), waitsVariable+"="+string(text))
	var said, failed strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &failed
	err = cmd.Run()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && !ended.Exited() {
		return true, last
	}
	require.NoError(t, err, failed.String())
	require.NoError(t, json.Unmarshal([]byte(said.String()), &last))
	return false, last
}

// fillToChange has n messages wait in a topic: one in six is a book, the others are gifts. Some
// have delay IDs. In each plain topic 20 gifts retry in both groups.
func fillToChange(t *testing.T, client redis.UniversalClient, n int, plain ...string) {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	for at, topic := range plain {
		var now, later []*message.Message
		for i := range 20 {
			msg := message.NewMessage(fmt.Sprint("now ", i), []byte("x"))
			msg.Metadata.Set("kind", "gift")
			now = append(now, msg)
		}
		require.NoError(t, publisher.Publish(topic, now...))
		for _, group := range []string{"a", "b"} {
			fail(t, client, topic, group, len(now), func(int) queue.Failure { return queue.Failure{Retry: queue.In(5 * time.Hour), Limit: -1} })
		}
		for i := at; i < n; i += len(plain) {
			msg := message.NewMessage(fmt.Sprint("later ", i), []byte("x"))
			msg.Metadata.Set("kind", map[bool]string{true: "book", false: "gift"}[i%6 == 0])
			redisdelay.DelayFor(msg, 10*time.Hour+time.Duration(i)*time.Second)
			if i%10 == 1 {
				redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
			}
			later = append(later, msg)
		}
		require.NoError(t, publisher.Publish(topic, later...))
	}
	require.NoError(t, publisher.Close())
}

// listGifts writes the gifts that wait or retry in group "a" to a file, and returns how many.
func listGifts(t *testing.T, a *admin.Admin, topic, name string) (n int) {
	t.Helper()
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	for _, state := range []admin.State{admin.Waiting, admin.Retrying} {
		for q := (admin.Query{State: state, Group: "a", Filter: admin.Filter{Metadata: map[string]string{"kind": "gift"}}, Limit: 1000}); ; {
			page, err := a.List(t.Context(), topic, q)
			require.NoError(t, err)
			for _, m := range page.Messages {
				require.NoError(t, json.NewEncoder(file).Encode(m))
				n++
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
	}
	return n
}

var freeAt = regexp.MustCompile(` free at [0-9.]+`)

// changed returns what an act makes of a message, and whether the topic has it then.
func (r waitsRun) changed(was holding) (is holding, there bool) {
	is = holding{has: was.has, dues: map[string]float64{}}
	for group, due := range was.dues {
		switch {
		case group == "b" || r.Act == "back":
		case r.Act == "cancel":
			continue
		case r.Act == "by":
			due += float64(movedBy.Milliseconds())
		default:
			due = float64(r.Due.UnixMilli())
		}
		is.dues[group] = due
		if group == "" { // its delay ID is free when it is due
			is.has = freeAt.ReplaceAllString(was.has, fmt.Sprintf(" free at %f", due))
		}
	}
	if r.Act == "cancel" {
		is.has = "" // a retry has one group less
	}
	return is, len(is.dues) > 0
}

// changesAndDies has processes change the gifts of a topic, each killed at a random chunk, until
// one comes to its end. It compares what is there with what was.
func changesAndDies(t *testing.T, client redis.UniversalClient, rounds int, topic string, plain []string, addrs ...string) {
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	others := append([]string{"other"}, plain...)
	for _, topic := range others {
		for _, group := range []string{"a", "b"} {
			s := newSubscriber(t, redisdelay.SubscriberConfig{Client: client, ConsumerGroup: group, TakeoverWindow: -1})
			require.NoError(t, s.SubscribeInitialize(topic))
		}
	}
	fillToChange(t, client, 3600, plain...)
	fillToChange(t, client, 60, "other")
	read := func() map[string]holding {
		all := map[string]holding{}
		for _, topic := range plain {
			for id, h := range holdings(t, client, topic, "a", "b") {
				all[id] = h
			}
		}
		return all
	}
	elsewhere := holdings(t, client, "other", "a", "b")
	random := rand.New(rand.NewPCG(1, 2))
	listing, kills, halves, n, undone := "", 0, 0, 0, map[string]holding{}
	for number, act := range waitActs {
		r := waitsRun{Topic: topic, Act: act, Due: time.Now().Add(30 * time.Hour).Truncate(time.Millisecond), Addrs: addrs, When: "never"}
		before := read()
		want := map[string]holding{}
		if act == "back" {
			for id, was := range undone {
				want[id] = was
			}
		} else {
			listing = filepath.Join(t.TempDir(), strconv.Itoa(number))
			n = listGifts(t, a, topic, listing)
			require.Equal(t, 3000+20*len(plain), n)
			undone = before
			gifts := map[string]bool{}
			for m, err := range listedIn(listing) {
				require.NoError(t, err)
				gifts[m.ID] = true
			}
			for id, was := range before {
				is, there := was, true
				if gifts[id] {
					is, there = r.changed(was)
				}
				if there {
					want[id] = is
				}
			}
		}
		r.Listing = listing
		// same compares a message with what it was or is to be.
		same := func(is holding, there bool, other holding, has bool) bool {
			return there == has && fmt.Sprint(is.dues) == fmt.Sprint(other.dues) && (is.has == other.has || act == "cancel" && other.has == "")
		}
		chunks := n/50 + len(plain)
		for range rounds {
			kill := r
			kill.Call, kill.When = 1+random.IntN(chunks), []string{"before", "between", "after"}[random.IntN(3)]
			if killed, _ := kill.start(t); killed {
				kills++
			}
			now, new, old := read(), 0, 0
			for id, was := range before {
				is, there := now[id]
				wanted, has := want[id]
				switch {
				case same(is, there, wanted, has):
					new++
				case same(is, there, was, true):
					old++
				default:
					require.Fail(t, "changed by half, or twice", "%s: message %s was %v, is %v (%v), wants %v (%v)", act, id, was, is, there, wanted, has)
				}
			}
			if old > 0 && new > len(before)-n {
				halves++
			}
			if faulttest.Long() {
				queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
			}
		}
		_, last := r.start(t)
		require.Equal(t, n, last.Looked)
		require.Equal(t, n, last.Done+last.Gone, "each is changed, now or before")
		require.Zero(t, last.Refused)
		after := read()
		require.Len(t, after, len(want))
		for id, wanted := range want {
			is, there := after[id]
			require.True(t, same(is, there, wanted, true), "%s: message %s is %v, wants %v", act, id, is, wanted)
		}
		if act == "by" {
			_, again := r.start(t)
			require.Zero(t, again.Done, "none is changed twice")
		}
		require.Equal(t, elsewhere, holdings(t, client, "other", "a", "b"), "another topic")
		queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
	}
	require.Positive(t, halves, "some kill left a part of the messages changed")
	faulttest.Report(t, fmt.Sprintf("%d kills of acts on %d of %d messages, %d of them in their midst; lost, changed twice, or changed besides: 0", kills, n, len(undone), halves))
}

func TestABulkActThatIsKilledChangesEachMessageOnce(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a program that cancels or reschedules 3,000 waiting messages, at any of its steps: run again with the same list, each is changed once, no other is, and none is lost")
	server := redistest.Start(t)
	changesAndDies(t, server.Client(t), faulttest.Pick(2, 8), "orders", []string{"orders"}, server.Addr())
}

func TestABulkActOnPartitionsThatIsKilledChangesEachMessageOnce(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a program that cancels or reschedules 3,000 waiting messages of a partitioned topic on a Cluster: the same")
	plain, err := partition.Topics("orders", 3)
	require.NoError(t, err)
	c := redistest.StartCluster(t)
	changesAndDies(t, c.Client(t), faulttest.Pick(1, 4), "orders", plain, c.Addrs()...)
}
