package main

import (
	"context"
	"fmt"
	"os"
	"time"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	r "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func main() {
	ctx := context.Background()
	log := watermill.NewSlogLogger(slog.Default())
	c := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR"), Username: "app", Password: "secret"})
	admin := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	pub, _ := r.NewPublisher(r.PublisherConfig{Client: c}, log)
	sub, _ := r.NewSubscriber(r.SubscriberConfig{Client: c, MaxDeliveries: 2, DeadRetention: time.Second, LeaseDuration: 100*time.Millisecond, Backoff: func(int) time.Duration { return 50*time.Millisecond }}, log)
	sub2, _ := r.NewSubscriber(r.SubscriberConfig{Client: c, ConsumerGroup: "g2"}, log)
	sc, _ := scheduler.New(scheduler.Config{Client: c}, log)
	go sc.Run(ctx)
	ch2, _ := sub2.Subscribe(ctx, "t")
	go func() { for m := range ch2 { m.Ack() } }()
	ch, err := sub.Subscribe(ctx, "t")
	if err != nil { panic(err) }
	m := message.NewMessage("u", []byte("x")); m.Metadata.Set("delay", "100ms")
	check(pub.Publish("t", m))
	for i := 0; i < 2; i++ { x := <-ch; time.Sleep(250*time.Millisecond); fmt.Println("nack"); x.Nack() }
	time.Sleep(200*time.Millisecond)
	fmt.Println(admin.Keys(ctx, "*").Val(), admin.HGetAll(ctx, "redisdelay:{t}:deliveries:default").Val())
	time.Sleep(1500*time.Millisecond)
	fmt.Println("after retention", admin.Keys(ctx, "*").Val())
	admin.FlushAll(ctx)
	began := time.Now()
	check(pub.Publish("t", message.NewMessage("after flush", nil)))
	x := <-ch
	fmt.Println("after FLUSHALL came", x.UUID, time.Since(began)); x.Ack()
	fmt.Println(errors.Join(sub.Close(), sub2.Close(), pub.Close()))
	fmt.Println(admin.Do(ctx, "ACL", "LOG").Val())
}
func check(err error) { if err != nil { panic(err) } }
