package brokers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/relay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// A child is this test binary as a process of its own, so that it can be killed. It ends with the
// test at the latest, however that ends, as its standard input does.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has, and all that it printed was read
}

// startChild starts one that relays to a broker; got gets the receipts that it prints, if it does.
func startChild(t *testing.T, role, broker, redisAddr, brokerAddr string, got *receipts) *child {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "REDISDELAY_CHILD="+role, "REDISDELAY_CHILD_BROKER="+broker,
		"REDISDELAY_CHILD_REDIS="+redisAddr, "REDISDELAY_CHILD_ADDR="+brokerAddr)
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // ends with this process, or with Wait
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{t: t, cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var r receipt
			if json.Unmarshal(lines.Bytes(), &r) == nil { // the last line may be cut
				got.add(r)
			}
		}
	}()
	t.Cleanup(c.kill)
	return c
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait()
}

// stop has the child end by itself.
func (c *child) stop() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGTERM))
	<-c.ended
	require.NoError(c.t, c.cmd.Wait())
}

// The functions from here on run in the child.

func orDie(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// untilTold ends by SIGTERM. It makes the child end with the test.
func untilTold() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	time.AfterFunc(2*patience, func() { orDie(fmt.Errorf("nobody has ended the child")) })
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	return ctx
}

func childRedis() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: os.Getenv("REDISDELAY_CHILD_REDIS")})
}

// relayChild relays to a broker.
func relayChild() int {
	return relayThrough(func(p message.Publisher) message.Publisher { return endsIfStuck{p} })
}

// killedChild relays to a broker, and kills itself when that has taken a message.
func killedChild() int {
	return relayThrough(func(p message.Publisher) message.Publisher { return killsItself{p} })
}

func relayThrough(wrap func(message.Publisher) message.Publisher) int {
	ctx := untilTold()
	destination, err := brokers[os.Getenv("REDISDELAY_CHILD_BROKER")].newPublisher(os.Getenv("REDISDELAY_CHILD_ADDR"))
	orDie(err)
	r, err := relay.New(relayTo(childRedis(), wrap(destination)), nil)
	orDie(err)
	orDie(r.Run(ctx))
	return 0
}

// killsItself ends the process as kill -9 does when Publish has succeeded.
type killsItself struct{ message.Publisher }

func (p killsItself) Publish(topic string, messages ...*message.Message) error {
	if err := p.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	orDie(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	select {}
}

// endsIfStuck ends the process when Publish does not return, as whoever watches over a relay would:
// watermill-amqp now and then does not, after RabbitMQ was restarted.
type endsIfStuck struct{ message.Publisher }

func (p endsIfStuck) Publish(topic string, messages ...*message.Message) error {
	stuck := time.AfterFunc(20*time.Second, func() { orDie(errors.New("Publish of the broker's client does not return")) })
	defer stuck.Stop()
	return p.Publisher.Publish(topic, messages...)
}

// schedulerChild moves what is due into streams.
func schedulerChild() int {
	ctx := untilTold()
	s, err := scheduler.New(scheduler.Config{Client: childRedis()}, nil)
	orDie(err)
	orDie(s.Run(ctx))
	return 0
}

// gochannelChild relays to a channel of its own, and prints what comes out before it acks it.
func gochannelChild() int {
	ctx := untilTold()
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	consumed, err := channel.Subscribe(context.Background(), topic)
	orDie(err)
	go func() {
		for msg := range consumed {
			line, err := json.Marshal(newReceipt(msg))
			orDie(err)
			fmt.Println(string(line))
			msg.Ack()
		}
	}()
	r, err := relay.New(relayTo(childRedis(), channel), nil)
	orDie(err)
	orDie(r.Run(ctx))
	return 0
}
