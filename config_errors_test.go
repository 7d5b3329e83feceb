package redisdelay_test

import (
	"net/netip"
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

// A program that shows a form, or checks a file of settings, asks for the field of each fault.
func TestEveryFaultOfAConfigurationNamesItsField(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", redisdelay.MaxTopicLength+1)
	type config interface{ Validate() error }
	for _, c := range []struct {
		config config
		fields []string
	}{
		{redisdelay.PublisherConfig{KeyPrefix: "{", MaxPublishMessages: -1, Stream: &redisdelay.StreamConfig{MaxLens: map[string]int64{"t": -1}}},
			[]string{"Client", "KeyPrefix", "MaxPublishMessages", `Stream.MaxLens["t"]`}},
		{redisdelay.PublisherConfig{MaxPublishMessages: 1 << 30}, []string{"Client", "MaxPublishMessages"}},
		{redisdelay.SubscriberConfig{ConsumerGroup: long, MaxInFlight: -1, GroupExpiry: 1}, []string{"Client", "ConsumerGroup", "GroupExpiry", "MaxInFlight"}},
		{scheduler.Config{Topics: []string{"a", ""}}, []string{"Client", "Topics[1]"}},
		{admin.Config{KeyPrefix: "{"}, []string{"Client", "KeyPrefix"}},
		{relay.Config{Concurrency: -1, BatchMessages: 1 << 30, Topics: []string{"a", "a"}},
			[]string{"Destination", "Concurrency", "BatchMessages", "Topics[1]", "Subscriber.Client"}},
		{relay.PublisherConfig{}, []string{"Destination", "Delayed"}},
		{periodic.Config{Poll: 1, CloseTimeout: -1}, []string{"Publisher", "Poll", "CloseTimeout"}},
		{periodic.Schedule{Topic: "t", MisfireWithin: -1}, []string{"Name", "Message", "Spec", "MisfireWithin"}},
		{periodic.OverlapConfig{KeyPrefix: "{", Policy: "x"}, []string{"Client", "KeyPrefix", "Policy"}},
		{partition.PublisherConfig{Partitions: -1}, []string{"Partitions", "Publisher.Client"}},
		{partition.SubscriberConfig{PartitionMaxInFlight: -1, Subscriber: redisdelay.SubscriberConfig{MaxDead: -1}},
			[]string{"PartitionMaxInFlight", "Subscriber.Client", "Subscriber.MaxDead"}},
		{dashboard.Config{Prefix: "x", Hosts: []string{""}, PublicURL: ":", Proxies: make([]netip.Prefix, 1), Redact: []string{"-"}},
			[]string{"Admin", "Prefix", "Hosts", "PublicURL", "Proxies", "Redact"}},
		{redisdelaytest.Config{KeyPrefix: "{"}, []string{"KeyPrefix"}},
	} {
		var fields []string
		var each func(err error)
		each = func(err error) {
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				for _, one := range joined.Unwrap() {
					each(one)
				}
				return
			}
			require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
			var fault *redisdelay.FieldError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, "invalid configuration: "+fault.Field+" "+fault.Fault, err.Error())
			fields = append(fields, fault.Field)
		}
		each(c.config.Validate())
		require.Equal(t, c.fields, fields, "%T", c.config)
	}
}

// An error that several packages return is one value.
func TestPackagesShareTheirErrors(t *testing.T) {
	t.Parallel()
	for one, all := range map[error][]error{
		redisdelay.ErrInvalidConfig: {scheduler.ErrInvalidConfig, admin.ErrInvalidConfig, periodic.ErrInvalidConfig},
		redisdelay.ErrAlreadyRun:    {scheduler.ErrAlreadyRun, periodic.ErrAlreadyRun},
		redisdelay.ErrExists:        {admin.ErrExists, periodic.ErrExists},
		redisdelay.ErrPastExpiry:    {admin.ErrPastExpiry},
		redisdelay.ErrInvalidTopic:  {admin.ErrInvalidTopic},
		redisdelay.ErrLayout:        {admin.ErrLayout},
		redisdelay.ErrTopicMode:     {admin.ErrTopicMode},
		redisdelay.ErrForbidden:     {admin.ErrForbidden},
		redisdelay.ErrServerFull:    {admin.ErrServerFull},
	} {
		for _, other := range all {
			require.Same(t, one, other)
		}
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
