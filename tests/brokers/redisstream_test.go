package brokers

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

var redisstreamBroker = broker{
	start: func(t *testing.T) server {
		return streams{redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")}
	},
	newPublisher: func(addr string) (message.Publisher, error) {
		return redisstream.NewPublisher(redisstream.PublisherConfig{Client: redis.NewClient(&redis.Options{Addr: addr})}, nil)
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client:        redis.NewClient(&redis.Options{Addr: addr}),
			ConsumerGroup: "consumers",
			ClaimInterval: time.Second, // of what the killed server had just handed out
			MaxIdleTime:   2 * time.Second,
		}, nil)
	},
}

type streams struct{ *redistest.Instance }

func (s streams) addr() string       { return s.Addr() }
func (s streams) restart(*testing.T) { s.Restart() } // by SIGKILL
