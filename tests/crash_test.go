package tests

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func init() {
	children["consumer"] = consumerChild
	children["poisoned consumer"] = poisonedChild
	children["frozen consumer"] = frozenChild
	children["publisher"] = publisherChild
}

// crashLease is how soon the tests' subscribers notice the crash of another; long enough to be
// extended in time on a busy machine.
const crashLease = time.Second

func ofCrashLease(c *redisdelay.SubscriberConfig) { c.LeaseDuration = crashLease }

var keys = queue.NewKeys(redisdelay.DefaultKeyPrefix, topic)

// consumerChild says which messages it got, works a little, and acks them.
func consumerChild() int {
	for msg := range childSubscribe(ofCrashLease) {
		fmt.Println(msg.UUID)
		time.Sleep(time.Millisecond)
		msg.Ack()
	}
	return 0
}

// The traces of a killed process in Redis look as if it did the due-time work still.
func TestReadinessNoticesThatTheSchedulerWasKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	scheduled := func() bool {
		r, err := a.Ready(t.Context(), topic)
		require.NoError(t, err)
		require.False(t, r.Topics[0].Idle)
		require.Zero(t, r.Topics[0].Lag)
		return r.Topics[0].Scheduled && r.Err(0) == nil
	}

	child := startChild(t, server, "consumer")
	child.awaitSubscribed()
	msg := message.NewMessage("1", nil)
	redisdelay.DelayFor(msg, time.Hour)
	require.NoError(t, newPublisher(t, on(t, client)).Publish(topic, msg))
	require.Eventually(t, scheduled, patience, time.Millisecond, "the child schedules")
	child.kill()
	require.Eventually(t, func() bool { return !scheduled() }, patience, time.Millisecond, "it was killed")
	require.NotEmpty(t, client.HGet(t.Context(), keys.Scheduler(), "holder").Val(), "as far as its lease says, it does still")
	subscribe(t, on(t, client), ofCrashLease)
	require.Eventually(t, scheduled, patience, time.Millisecond, "another is there")
}

func TestKilledSubscriberLosesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	const messages, killedAfter = 1200, 150

	child := startChild(t, server, "consumer")
	child.awaitSubscribed()
	publisher := newPublisher(t, on(t, client))
	var load sync.WaitGroup
	defer load.Wait()
	load.Go(func() {
		const atOnce = 20
		for i := 0; i < messages; i += atOnce {
			batch := make([]*message.Message, atOnce)
			for j := range batch {
				batch[j] = message.NewMessage(strconv.Itoa(i+j), nil)
			}
			if !assert.NoError(t, publisher.Publish(topic, batch...)) {
				return
			}
		}
	})

	handled := map[string]bool{}
	for range killedAfter {
		handled[child.line()] = true
	}
	child.kill()
	for _, uuid := range child.rest() {
		handled[uuid] = true
	}
	byChild, held := len(handled), client.ZCard(t.Context(), keys.Unack(redisdelay.DefaultConsumerGroup)).Val()

	require.NoError(t, queuetest.EndWindows(t.Context(), client, redisdelay.DefaultKeyPrefix)) // which keeps all bodies

	// The messages of the dead one come when their leases are over. All messages are in order.
	successor := subscribe(t, on(t, client), ofCrashLease)
	again, last := 0, map[bool]int{true: -1, false: -1}
	for len(handled) < messages || exists(t, client, keys.Messages()) {
		msg, delivery := receive(t, successor)
		n, err := strconv.Atoi(msg.UUID)
		require.NoError(t, err)
		require.Greater(t, n, last[delivery.Redelivered], "out of order, redelivered: %v", delivery.Redelivered)
		last[delivery.Redelivered] = n
		if handled[msg.UUID] {
			require.True(t, delivery.Redelivered, "%s was handled, and comes as if it was not", msg.UUID)
			again++
		}
		handled[msg.UUID] = true
		msg.Ack()
		if len(handled) == messages {
			awaitSettled(t, client, delivery)
		}
	}
	t.Logf("%d of %d messages were handled before the crash, %d of them again after it; %d were claimed",
		byChild, messages, again, held)
	queuetest.CheckDrained(t, client, redisdelay.DefaultKeyPrefix, queuetest.Live())
}

const besidePoison, poisonDeliveries = 10, 3

// poisonedChild says which messages it got, acks them, and dies of the poison. The first one acks
// nothing, and dies when it has all in hand.
func poisonedChild() int {
	inHand := 0
	for msg := range childSubscribe(func(c *redisdelay.SubscriberConfig) {
		ofCrashLease(c)
		c.MaxInFlight = besidePoison + 1
		c.MaxDeliveries = poisonDeliveries
	}) {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Println(msg.UUID, delivery.Number)
		inHand++
		switch {
		case !delivery.Redelivered && inHand <= besidePoison:
		case !delivery.Redelivered || msg.UUID == "poison":
			dieAtOnce()
		default:
			msg.Ack()
		}
	}
	return 0
}

func TestMessageThatKillsItsProcessDiesWithoutItsNeighbours(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	ofPoison := func(c *redisdelay.SubscriberConfig) {
		ofCrashLease(c)
		c.MaxDeliveries = poisonDeliveries
	}
	require.NoError(t, newSubscriber(t, on(t, client), ofPoison).SubscribeInitialize(topic))
	var all []*message.Message
	for i := range besidePoison {
		if i == besidePoison/2 {
			all = append(all, message.NewMessage("poison", nil))
		}
		all = append(all, message.NewMessage(fmt.Sprint("beside-", i), nil))
	}
	require.NoError(t, newPublisher(t, on(t, client)).Publish(topic, all...))

	dead := keys.Dead(redisdelay.DefaultConsumerGroup)
	number := 0
	for crashes := 0; number < poisonDeliveries; crashes++ {
		require.Less(t, crashes, poisonDeliveries+2+3, "MaxDeliveries + 2 + log2(MaxInFlight)")
		for _, line := range startChild(t, server, "poisoned consumer").rest() {
			uuid, text, _ := strings.Cut(line, " ")
			if uuid == "poison" {
				number, _ = strconv.Atoi(text)
				continue
			}
			require.Equal(t, "1", text, "%s lost a delivery", uuid)
		}
	}
	survivor := newReceipts()
	survivor.ackAll(subscribe(t, on(t, client), ofPoison))
	require.Eventually(t, func() bool { return exists(t, client, dead) }, patience, time.Millisecond)
	require.NoError(t, queuetest.EndWindows(t.Context(), client, redisdelay.DefaultKeyPrefix))
	require.Eventually(t, func() bool {
		return client.HLen(t.Context(), keys.Messages()).Val() == 1
	}, patience, time.Millisecond)
	require.EqualValues(t, 1, client.ZCard(t.Context(), dead).Val())
	// A child may have died before its last acks were in Redis.
	for uuid, r := range survivor.soFar(t) {
		require.NotEqual(t, "poison", uuid)
		require.Equal(t, 1, r.delivery.Number, "%s lost a delivery", uuid)
	}
	queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
}

// frozenChild works on its message until it has been frozen for longer than its lease, and acks it
// as the first thing afterwards. It says so when that has reached the server, or did not have to.
func frozenChild() int {
	subscriber := childSubscriber(ofCrashLease)
	messages, err := subscriber.Subscribe(context.Background(), topic)
	orDie(err)
	msg := <-messages
	thawed := make(chan os.Signal, 1)
	signal.Notify(thawed, syscall.Signal(18)) // SIGCONT, which syscall has not on every system
	fmt.Println(msg.UUID)
	<-thawed
	msg.Ack()
	orDie(subscriber.Close())
	fmt.Println("closed")
	return 0
}

func TestLateAckOfAFrozenWorkerChangesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	expectDrained(t, on(t, client))
	publisher := newPublisher(t, on(t, client))

	child := startChild(t, server, "frozen consumer")
	child.awaitSubscribed()
	publish(t, publisher, "order", 0)
	require.Equal(t, "order", child.line())
	thaw := child.freeze()

	messages := subscribe(t, on(t, client), func(c *redisdelay.SubscriberConfig) {
		ofCrashLease(c)
		c.Backoff = func(int) time.Duration { return 0 }
	})
	msg, delivery := receive(t, messages)
	require.Equal(t, "order", msg.UUID)
	require.True(t, delivery.Redelivered)

	thaw()
	require.Equal(t, "closed", child.line())

	require.NoError(t, msg.Context().Err(), "the message is not its new holder's any more")
	require.True(t, exists(t, client, keys.Messages()))
	queuetest.Check(t, client, redisdelay.DefaultKeyPrefix)
	msg.Nack()
	msg, again := receive(t, messages)
	require.Equal(t, delivery.ID, again.ID)
	require.Equal(t, delivery.Number+1, again.Number)
	msg.Ack()
}

// publisherChild publishes as fast as it can from several goroutines, and says what has succeeded:
// single messages and pairs.
func publisherChild() int {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: childClient()}, nil)
	orDie(err)
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%d-%d", g, i)
				pair := []*message.Message{message.NewMessage(name+"-first", nil), message.NewMessage(name+"-second", nil)}
				redisdelay.DelayFor(pair[1], time.Duration(i%100)*time.Millisecond)
				orDie(publisher.Publish(topic, pair...))
				fmt.Println(name)
			}
		}()
	}
	select {}
}

func TestConfirmedCallsOfAKilledPublisherArePublished(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	subscriber := newSubscriber(t, on(t, client), func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 100 })
	require.NoError(t, subscriber.SubscribeInitialize(topic))

	child := startChild(t, server, "publisher")
	var told []string
	for len(told) < 500 {
		told = append(told, child.line())
	}
	child.kill()
	told = append(told, child.rest()...)
	awaitGone(t, client, "publisher")

	stored := int(client.HLen(t.Context(), keys.Messages()).Val())
	messages, err := subscriber.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	received := newReceipts()
	received.ackAll(messages)
	all := received.await(t, stored) // and none twice
	for _, name := range told {
		require.Contains(t, all, name+"-first")
	}
	for uuid := range all {
		name, first := strings.CutSuffix(uuid, "-first")
		if first {
			require.Contains(t, all, name+"-second", "a call was cut in two")
		}
	}
	require.Zero(t, stored%2, "a call was cut in two")
	t.Logf("%d calls returned, %d reached the server", len(told), stored/2)
	require.NoError(t, subscriber.Close())
	queuetest.CheckDrained(t, client, redisdelay.DefaultKeyPrefix)
}

func exists(t testing.TB, client redis.UniversalClient, key string) bool {
	t.Helper()
	n, err := client.Exists(t.Context(), key).Result()
	require.NoError(t, err)
	return n == 1
}

// awaitSettled waits until the server knows that a message was acked.
func awaitSettled(t testing.TB, client redis.UniversalClient, delivery redisdelay.Delivery) {
	t.Helper()
	require.Eventually(t, func() bool {
		return client.HGet(t.Context(), keys.Leases(delivery.Group), delivery.ID).Err() == redis.Nil
	}, patience, time.Millisecond)
}

// awaitGone waits until the server has noticed the end of a child, and done all that it was asked
// for.
func awaitGone(t testing.TB, client redis.UniversalClient, role string) {
	t.Helper()
	name := "name=" + clientName(role)
	require.Eventually(t, func() bool {
		list, err := client.ClientList(t.Context()).Result()
		return err == nil && !strings.Contains(list, name)
	}, patience, time.Millisecond)
}

// A child is this test binary as a process of its own, so that it can crash. What it prints is for
// the test to read, line by line. It ends with the test at the latest, however that ends, as its
// standard input does, and never lives for longer than childLife.
type child struct {
	t      testing.TB
	role   string
	client redis.UniversalClient
	cmd    *exec.Cmd
	lines  *bufio.Scanner
}

const childLife = time.Minute

func startChild(t testing.TB, server *redistest.Instance, role string) *child {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "REDISDELAY_CHILD="+role, "REDISDELAY_CHILD_REDIS="+server.Addr())
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // ends with this process, or with Wait
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{
		t: t, role: role, client: server.Client(t),
		cmd: cmd, lines: bufio.NewScanner(stdout),
	}
	t.Cleanup(func() {
		c.kill()
		_ = cmd.Wait()
	})
	return c
}

// kill ends the child as kill -9 does. What it has printed can be read yet.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// line is the next one that the child prints.
func (c *child) line() string {
	c.t.Helper()
	require.True(c.t, c.lines.Scan(), "the %s has ended", c.role)
	return c.lines.Text()
}

// rest are the lines until the child ends.
func (c *child) rest() (lines []string) {
	for c.lines.Scan() {
		lines = append(lines, c.lines.Text())
	}
	return lines
}

// awaitSubscribed waits until the child's subscription has found nothing to do.
func (c *child) awaitSubscribed() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		return c.client.Exists(c.t.Context(), keys.Waiters(redisdelay.DefaultConsumerGroup)).Val() == 1
	}, patience, time.Millisecond)
}

// freeze stops the child as SIGSTOP does, until it is thawed or the test ends, however that ends.
func (c *child) freeze() (thaw func()) {
	c.t.Helper()
	pid := strconv.Itoa(c.cmd.Process.Pid)
	shell := exec.Command("sh", "-c", `kill -s STOP "$0" && echo; read _; kill -s CONT "$0"`, pid)
	stdin, err := shell.StdinPipe()
	require.NoError(c.t, err)
	stdout, err := shell.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, shell.Start())
	thaw = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = shell.Wait()
	})
	c.t.Cleanup(thaw)
	require.True(c.t, bufio.NewScanner(stdout).Scan(), "the %s cannot be frozen", c.role)
	redistest.AwaitFrozen(c.t, c.cmd.Process.Pid)
	return thaw
}

// The functions from here on run in the child.

// childClient is connected to the test's server. It makes the child end with the test.
func childClient() redis.UniversalClient {
	time.AfterFunc(childLife, func() { orDie(fmt.Errorf("nobody has ended the child in %v", childLife)) })
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		dieAtOnce()
	}()
	return redis.NewClient(&redis.Options{
		Addr:       os.Getenv("REDISDELAY_CHILD_REDIS"),
		ClientName: clientName(os.Getenv("REDISDELAY_CHILD")),
	})
}

func clientName(role string) string { return strings.ReplaceAll(role, " ", "-") }

func childSubscriber(change func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	config := redisdelay.SubscriberConfig{Client: childClient()}
	change(&config)
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	orDie(err)
	return subscriber
}

func childSubscribe(change func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	messages, err := childSubscriber(change).Subscribe(context.Background(), topic)
	orDie(err)
	return messages
}

func orDie(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child process:", err)
		os.Exit(1)
	}
}

// dieAtOnce is a crash: nothing is cleaned up.
func dieAtOnce() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}
