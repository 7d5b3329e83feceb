package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/clusterload"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// topicOf is one topic under load, with a publisher and a subscription.
type topicOf struct {
	publisher  message.Publisher
	subscriber message.Subscriber
	consumers  sync.WaitGroup

	mu   sync.Mutex
	late []time.Duration
	came int
}

// newTopic opens a topic with so many partitions; 0 is a plain topic.
func newTopic(t *testing.T, client *redis.ClusterClient, partitions int) *topicOf {
	o := &topicOf{}
	prefix := "bench" + watermill.NewShortUUID()
	publishing := redisdelay.PublisherConfig{Client: client, KeyPrefix: prefix}
	subscribing := redisdelay.SubscriberConfig{Client: client, KeyPrefix: prefix, MaxInFlight: 1000}
	var errs [2]error
	if partitions > 0 {
		o.publisher, errs[0] = partition.NewPublisher(partition.PublisherConfig{Partitions: partitions, Publisher: publishing}, nil)
		o.subscriber, errs[1] = partition.NewSubscriber(partition.SubscriberConfig{Partitions: partitions, Subscriber: subscribing}, nil)
	} else {
		o.publisher, errs[0] = redisdelay.NewPublisher(publishing, nil)
		o.subscriber, errs[1] = redisdelay.NewSubscriber(subscribing, nil)
	}
	messages, err := o.subscriber.Subscribe(context.Background(), "orders")
	if err != nil || errs[0] != nil || errs[1] != nil {
		t.Fatal(errs, err)
	}
	for range 8 {
		o.consumers.Go(func() { o.consume(messages) })
	}
	return o
}

func (o *topicOf) consume(messages <-chan *message.Message) {
	for msg := range messages {
		due, _ := strconv.ParseInt(string(msg.Payload[:13]), 10, 64)
		late := time.Since(time.UnixMilli(due))
		msg.Ack()
		o.mu.Lock()
		o.late = append(o.late, late)
		o.came++
		o.mu.Unlock()
	}
}

// publish publishes messages that are due in 100 ms, in one call.
func (o *topicOf) publish(t *testing.T, n int) {
	due := time.Now().Add(100 * time.Millisecond).Truncate(time.Millisecond)
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d %086d", due.UnixMilli(), i))
		redisdelay.DelayUntil(messages[i], due)
	}
	if err := o.publisher.Publish("orders", messages...); err != nil {
		t.Error(err)
	}
}

func (o *topicOf) close() {
	_ = o.publisher.Close()
	_ = o.subscriber.Close()
	o.consumers.Wait()
}

// load publishes calls of so many messages each, at a steady rate, and waits until all came.
func (o *topicOf) load(t *testing.T, calls, each int, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var publishing sync.WaitGroup
	for range calls {
		publishing.Go(func() { o.publish(t, each) })
		<-tick.C
	}
	publishing.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		came := o.came
		o.mu.Unlock()
		if came == calls*each {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages came", came, calls*each)
		}
	}
}

// TestPartitions compares a topic of 12 partitions with a plain topic under the same load.
func TestPartitions(t *testing.T) {
	c, client := start(t)
	each := func() (all []float64) {
		for _, in := range c.Nodes() {
			all = append(all, cpu(t, []*redistest.Instance{in}))
		}
		return all
	}
	fmt.Println("| Load | CPU a message: hottest node | All primaries | All nodes | p50, ms | p99, ms | Beside one topic |")
	fmt.Println("|---|--:|--:|--:|--:|--:|---|")
	for _, l := range []struct {
		name        string
		calls, each int
		every       time.Duration
	}{
		{"batches of 1,000", 40, 1000, 200 * time.Millisecond},
		{"batches of 2,000", 20, 2000, 400 * time.Millisecond},
		{"single publishes", 12000, 1, 500 * time.Microsecond},
	} {
		l.calls = some(l.calls)
		var plain []float64
		var plainP99 float64
		for _, partitions := range []int{0, 12} {
			o := newTopic(t, client, partitions)
			time.Sleep(some(time.Second))
			before, began := each(), time.Now()
			time.Sleep(some(2 * time.Second))
			idle := each()
			for i := range idle {
				idle[i] = (idle[i] - before[i]) / time.Since(began).Seconds()
			}
			before, began = each(), time.Now()
			o.load(t, l.calls, l.each, l.every)
			used, took := each(), time.Since(began).Seconds()
			for i := range used {
				used[i] = (used[i] - before[i] - idle[i]*took) / float64(l.calls*l.each)
			}
			o.close()
			hottest, primaries, all := slices.Max(used), 0.0, 0.0
			for i := range used {
				all += used[i]
				if i < len(c.Primaries) {
					primaries += used[i]
				}
			}
			slices.Sort(o.late)
			p99 := ms(clusterload.Quantile(o.late, 0.99))
			row := fmt.Sprintf("| %s, %d partitions | %.1f us | %.1f us | %.1f us | %.1f | %.1f |", l.name, partitions, hottest, primaries, all,
				ms(clusterload.Quantile(o.late, 0.5)), p99)
			if plain == nil {
				plain, plainP99 = []float64{hottest, primaries, all}, p99
			} else {
				row += fmt.Sprintf(" hottest %.2f (limit 0.42), primaries %.2f (limit 1.25), all %.2f, p99 %+.1f ms",
					hottest/plain[0], primaries/plain[1], all/plain[2], p99-plainP99)
			}
			fmt.Println(row + " |")
		}
	}
}

// roundTrips counts the calls of a client. It does not see those of Pub/Sub connections, which are
// a PING a second for each master.
type roundTrips struct{ atomic.Int64 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.Add(1)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.Add(1)
		return next(ctx, cmds)
	}
}

// TestPartitionsIdle shows the round trips of one idle subscription, and of its scheduler.
func TestPartitionsIdle(t *testing.T) {
	_, client := start(t)
	count := &roundTrips{}
	client.AddHook(count)
	for _, partitions := range []int{0, 12} {
		o := newTopic(t, client, partitions)
		time.Sleep(some(7 * time.Second))
		before := count.Load()
		time.Sleep(some(30 * time.Second))
		trips := float64(count.Load()-before) / some(30*time.Second).Seconds()
		o.close()
		fmt.Printf("idle, %d partitions: %.2f round trips a second, %.2f a plain topic (limit 0.50)\n", partitions, trips, trips/float64(max(partitions, 1)))
	}
}
