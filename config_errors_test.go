package redisdelay_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
	"github.com/redisdelay/watermill-redisdelay/relay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// The modules otel and prometheus have tests of their own.
func TestEveryPackageRefusesAConfigurationWithOneError(t *testing.T) {
	t.Parallel()
	second := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"publisher":            second(redisdelay.NewPublisher(redisdelay.PublisherConfig{}, nil)),
		"subscriber":           second(redisdelay.NewSubscriber(redisdelay.SubscriberConfig{}, nil)),
		"scheduler":            second(scheduler.New(scheduler.Config{}, nil)),
		"admin":                second(admin.New(admin.Config{})),
		"relay":                second(relay.New(relay.Config{}, nil)),
		"relay's publisher":    second(relay.NewPublisher(relay.PublisherConfig{})),
		"periodic":             second(periodic.New(periodic.Config{}, nil)),
		"partition publisher":  second(partition.NewPublisher(partition.PublisherConfig{}, nil)),
		"partition subscriber": second(partition.NewSubscriber(partition.SubscriberConfig{}, nil)),
		"dashboard":            second(dashboard.New(dashboard.Config{})),
		"dashboard's Validate": dashboard.Config{Prefix: "x", Hosts: []string{""}}.Validate(),
		"redisdelaytest":       second(redisdelaytest.New(redisdelaytest.Config{KeyPrefix: "{"})),
	} {
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig, name)
	}
}

// An error about a field is a sentence that names its subject once.
func TestErrorsAboutTopicsNameTheFieldOnly(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	long := strings.Repeat("a", redisdelay.MaxTopicLength+1)
	const want = "invalid configuration: Topics[0] is empty; it needs a name\n" +
		"invalid configuration: Topics[1] has 513 bytes; at most 512 are allowed"
	_, err := scheduler.New(scheduler.Config{Client: client, Topics: []string{"", long}}, nil)
	require.EqualError(t, err, want)
	_, err = relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newPublisherOf(t, client), Topics: []string{"", long},
	}, nil)
	require.EqualError(t, err, want)
	_, err = partition.Topics("", 1)
	require.EqualError(t, err, "invalid topic: topic is empty; it needs a name")
}

func newPublisherOf(t *testing.T, client redis.UniversalClient) *redisdelay.Publisher {
	t.Helper()
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	return p
}
