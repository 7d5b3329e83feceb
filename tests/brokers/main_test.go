// Package brokers has the tests of the relay with brokers. A test starts its own, but for
// PostgreSQL, of which it has a database; Kafka is one inside the test's process. It is a module of
// its own, so that the library does not get their clients.
//
// Messages with all kinds of delays go through relay.Publisher, Redis, and a relay in a process of
// its own, to a consumer of the broker. In the middle the broker is restarted, and the process is
// killed. Everything has to arrive as it was sent, nothing early, and no more of it twice than is
// promised. With a Publisher into Redis Streams there is no relay, and nothing is twice.
package brokers

import (
	"fmt"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A broker is a message queue to relay to.
type broker struct {
	// start starts it for a test; nil if it lives in the process that relays.
	start func(t *testing.T) server

	newPublisher  func(addr string) (message.Publisher, error)
	newSubscriber func(addr string) (message.Subscriber, error)

	once bool // it drops what a relay publishes again

	// For the tests of faults, whose server is faulty; nil if there are none.
	permanent func(error) bool                       // the relay's Config.Permanent
	refused   map[string]refusal                     // by what is wrong with the message
	addTopic  func(t *testing.T, addr, topic string) // adds a topic that is missing
}

// A server is a running broker. It ends with its test.
type server interface {
	addr() string
	restart(t *testing.T)
}

var brokers = map[string]broker{
	"redisstream":         redisstreamBroker,
	"jetstream":           jetstreamBroker,
	"rabbitmq":            rabbitmqBroker,
	"kafka":               kafkaBroker,
	"postgres":            postgresBroker,
	"postgres, each once": postgresOnceBroker,
	"http":                httpBroker,
	"gochannel":           {}, // which cannot be had from outside
}

func TestMain(m *testing.M) {
	switch role := os.Getenv("REDISDELAY_CHILD"); role {
	case "":
		redistest.Main(m,
			// watermill-amqp leaves them behind when a connection is closed after it was lost, the
			// last two now and then.
			goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp.(*ConnectionWrapper).handleConnectionClose"),
			goleak.IgnoreAnyFunction("github.com/rabbitmq/amqp091-go.(*Connection).shutdown"),
			goleak.IgnoreAnyFunction("github.com/redisdelay/watermill-redisdelay/tests/brokers.closeUnlessStuck.func1"),
			// The metrics of Kafka's client have one for the whole process.
			goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
			// Watermill's suite leaves them behind when watermill-redisstream claims what others of
			// its subscribers work on yet, and so delivers more than the suite reads.
			goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
			goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func3"))
	case "relay":
		os.Exit(relayChild())
	case "relay-killed":
		os.Exit(killedChild())
	case "gochannel":
		os.Exit(gochannelChild())
	case "scheduler":
		os.Exit(schedulerChild())
	default:
		panic(fmt.Sprintf("no child process has the role %q", role))
	}
}
