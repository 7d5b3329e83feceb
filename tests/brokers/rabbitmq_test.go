package brokers

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/test/rabbitmqtest"
)

var rabbitmqBroker = broker{
	start: func(t *testing.T) server { return rabbitmq{rabbitmqtest.Start(t)} },
	newPublisher: func(addr string) (message.Publisher, error) {
		config := amqp.NewDurableQueueConfig(addr)
		config.Publish.ConfirmDelivery = true // else Publish does not wait until RabbitMQ has the message
		config.Publish.ChannelPoolSize = concurrency
		return amqp.NewPublisher(config, watermill.NopLogger{})
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		config := amqp.NewDurableQueueConfig(addr)
		config.Consume.Qos.PrefetchCount = inConsumersHands
		return amqp.NewSubscriber(config, watermill.NopLogger{})
	},
}

// redeliveredByRabbitmq is what watermill-amqp adds to the metadata of what its consumer had in
// hand already.
const redeliveredByRabbitmq = "_watermill_amqp_redelivered"

type rabbitmq struct{ *rabbitmqtest.Server }

func (r rabbitmq) addr() string       { return r.URL() }
func (r rabbitmq) restart(*testing.T) { r.Restart() } // by SIGKILL
