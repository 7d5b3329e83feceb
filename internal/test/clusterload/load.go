// Package clusterload puts a Cluster under a steady load, with topics on every master, and says how
// late messages come on each. The fault tests and the benchmarks of a Cluster use it.
package clusterload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// Config configures a Load.
type Config struct {
	Client       *redis.ClusterClient
	Logger       watermill.LoggerAdapter
	PerNode      int           // topics on each master
	Every        time.Duration // between two messages of a topic
	Delay        time.Duration // of each message
	WaitReplicas int
}

// Load is a load under way, in this process.
type Load struct {
	config     Config
	publisher  *redisdelay.Publisher
	subscriber *redisdelay.Subscriber
	topics     map[string]string // name -> address of the master that has it

	stop       context.CancelFunc
	publishing sync.WaitGroup
	consuming  sync.WaitGroup

	mu       sync.Mutex
	samples  []sample
	promised map[string]bool // messages whose Publish returned nil
	came     map[string]int  // how often each message came
	failed   int             // calls of Publish that failed
}

// sample is one delivery.
type sample struct {
	topic string
	due   time.Time
	late  time.Duration
}

// Start puts the Cluster under load.
func Start(c Config) (*Load, error) {
	l := &Load{config: c, topics: map[string]string{}, promised: map[string]bool{}, came: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	masters := map[string]int{}
	var mu sync.Mutex
	err := c.Client.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[node.Options().Addr] = 0
		return nil
	})
	for i := 0; err == nil && len(l.topics) < len(masters)*c.PerNode; i++ {
		name := "t" + strconv.Itoa(i)
		var node *redis.Client
		if node, err = c.Client.MasterForKey(ctx, "{"+name+"}"); err == nil && masters[node.Options().Addr] < c.PerNode {
			masters[node.Options().Addr]++
			l.topics[name] = node.Options().Addr
		}
	}
	if err == nil {
		l.publisher, err = redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: c.Client, WaitReplicas: c.WaitReplicas}, c.Logger)
	}
	if err == nil {
		l.subscriber, err = redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: c.Client, MaxInFlight: 10}, c.Logger)
	}
	for _, topic := range l.Topics() {
		if err != nil {
			break
		}
		var messages <-chan *message.Message
		if messages, err = l.subscriber.Subscribe(context.Background(), topic); err == nil {
			l.consuming.Go(func() { l.consume(topic, messages) })
			l.publishing.Go(func() { l.publish(ctx, topic) })
		}
	}
	if err != nil {
		stop()
	}
	return l, err
}

// Topics returns the names of all topics, those of a master together.
func (l *Load) Topics() []string {
	return slices.SortedFunc(maps.Keys(l.topics), func(a, b string) int {
		return strings.Compare(l.topics[a]+" "+a, l.topics[b]+" "+b)
	})
}

// publish publishes one message after the other. The payload has the due time and a number.
func (l *Load) publish(ctx context.Context, topic string) {
	tick := time.NewTicker(l.config.Every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := time.UnixMilli(time.Now().Add(l.config.Delay).UnixMilli())
		payload := fmt.Sprintf("%s %d %d", topic, i, due.UnixMilli())
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		redisdelay.DelayUntil(msg, due)
		err := l.publisher.Publish(topic, msg)
		l.mu.Lock()
		if err == nil {
			l.promised[payload] = true
		} else {
			l.failed++
		}
		l.mu.Unlock()
	}
}

func (l *Load) consume(topic string, messages <-chan *message.Message) {
	for msg := range messages {
		now := time.Now()
		payload := string(msg.Payload)
		ms, _ := strconv.ParseInt(payload[strings.LastIndexByte(payload, ' ')+1:], 10, 64)
		due := time.UnixMilli(ms)
		l.mu.Lock()
		l.samples = append(l.samples, sample{topic, due, now.Sub(due)})
		l.came[payload]++
		l.mu.Unlock()
		msg.Ack()
	}
}

// Lateness returns how late the messages came that were due in a time, sorted, by the master that
// place returns for a topic. A nil place means the masters of the start.
func (l *Load) Lateness(from, to time.Time, place func(topic string) string) map[string][]time.Duration {
	if place == nil {
		place = func(topic string) string { return l.topics[topic] }
	}
	by := map[string]string{}
	for topic := range l.topics {
		by[topic] = place(topic)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	late := map[string][]time.Duration{}
	for _, s := range l.samples {
		if !s.due.Before(from) && s.due.Before(to) {
			late[by[s.topic]] = append(late[by[s.topic]], s.late)
		}
	}
	for _, all := range late {
		slices.Sort(all)
	}
	return late
}

// Last returns when the latest message of the topics of a master was due that has come.
func (l *Load) Last(master string) (due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.samples {
		if l.topics[s.topic] == master && s.due.After(due) {
			due = s.due
		}
	}
	return due
}

// Quantile returns a quantile of sorted durations.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Verdict says what became of all messages.
type Verdict struct {
	Promised, Failed int // messages whose Publish returned nil, or an error
	Lost             int // promised messages that never came
	Doubled          int // deliveries of a message after its first
	Early            int
}

// Stop ends the load, waits as long as patience for the messages that are promised, and returns the
// verdict.
func (l *Load) Stop(patience time.Duration) (Verdict, error) {
	l.stop()
	l.publishing.Wait()
	for end := time.Now().Add(patience); l.verdict().Lost > 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	err := l.subscriber.Close()
	if closed := l.publisher.Close(); err == nil {
		err = closed
	}
	l.consuming.Wait()
	return l.verdict(), err
}

func (l *Load) verdict() Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := Verdict{Promised: len(l.promised), Failed: l.failed}
	for payload := range l.promised {
		if l.came[payload] == 0 {
			v.Lost++
		}
	}
	for _, n := range l.came {
		v.Doubled += n - 1
	}
	for _, s := range l.samples {
		if s.late < 0 {
			v.Early++
		}
	}
	return v
}

// Master returns the address of the master that had a topic at the start.
func (l *Load) Master(topic string) string { return l.topics[topic] }
