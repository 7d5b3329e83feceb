package brokers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqpclient "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

var rabbitmqBroker = broker{
	start: func(t *testing.T) server { return startRabbitmq(t) },
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

// redeliveredByRabbitmq is what watermill-amqp adds to the metadata of what its consumer had in hand already.
const redeliveredByRabbitmq = "_watermill_amqp_redelivered"

// rabbitmq is a RabbitMQ server with a directory, ports and a port mapper of its own. It ends with its test,
// however that ends.
type rabbitmq struct {
	bin, dir string
	port     int
	mapper   int // port of epmd
	peers    int // port that no other server uses
	kill     func()
}

// rabbitmqBin is the server itself: the one on the PATH changes to a user of its own.
func rabbitmqBin(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	if len(found) == 0 {
		missing(t, "no RabbitMQ: install rabbitmq-server")
	}
	return found[len(found)-1]
}

// missing skips the test, or fails it where nothing may be left out.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("REDISTEST_REQUIRED") == "1" {
		t.Fatal(what)
	}
	t.Skip(what + ": LEFT OUT")
}

func startRabbitmq(t *testing.T) *rabbitmq {
	t.Helper()
	r := &rabbitmq{bin: rabbitmqBin(t), dir: t.TempDir(), port: freePort(t), mapper: freePort(t), peers: freePort(t)}
	r.write(t, "rabbitmq.conf", fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\n", r.port))
	r.write(t, "enabled_plugins", "[].\n")
	// Else the server starts one that outlives it.
	startLeashed(t, nil, "epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(r.mapper))
	r.up(t)
	return r
}

func (r *rabbitmq) addr() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", r.port) }

// restart ends the server by SIGKILL, and starts it again.
func (r *rabbitmq) restart(t *testing.T) {
	t.Helper()
	r.kill()
	r.up(t)
}

func (r *rabbitmq) up(t *testing.T) {
	t.Helper()
	r.kill = startLeashed(t, []string{
		"HOME=" + r.dir, "RABBITMQ_NODENAME=test@localhost",
		fmt.Sprint("ERL_EPMD_PORT=", r.mapper), fmt.Sprint("RABBITMQ_DIST_PORT=", r.peers),
		"RABBITMQ_MNESIA_BASE=" + r.path("mnesia"), "RABBITMQ_LOG_BASE=" + r.path("log"), "RABBITMQ_PID_FILE=" + r.path("pid"),
		"RABBITMQ_CONFIG_FILE=" + r.path("rabbitmq.conf"), "RABBITMQ_ADVANCED_CONFIG_FILE=" + r.path("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + r.path("rabbitmq-env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + r.path("enabled_plugins"),
	}, r.bin)
	require.Eventually(t, func() bool {
		connection, err := amqpclient.Dial(r.addr())
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}, patience, 50*time.Millisecond, "RabbitMQ does not start")
}

func (r *rabbitmq) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rabbitmq) write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(r.path(name), []byte(text), 0o600))
}

// startLeashed starts a command in a process group of its own. A shell kills that when it is told to, or when the test
// ends, or the test binary, however that ends.
func startLeashed(t *testing.T, env []string, name string, args ...string) (kill func()) {
	t.Helper()
	leash := exec.Command("sh", append([]string{"-c", `
		trap "" HUP INT QUIT TERM
		setsid "$0" "$@" </dev/null >/dev/null 2>&1 &
		read _
		kill -s KILL -- "-$!"
		wait`, name}, args...)...)
	leash.Env = append(os.Environ(), env...)
	stdin, err := leash.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, leash.Start())
	kill = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = leash.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// freePort is below the ports that systems hand out by themselves.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
	require.FailNow(t, "no port is free")
	return 0
}
