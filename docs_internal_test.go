package redisdelay

import (
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/readme"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func TestConfigurationTablesInDocumentsAreTrue(t *testing.T) {
	var publisher PublisherConfig
	publisher.setDefaults()
	readme.RequireTable(t, "docs/reference.md", "PublisherConfig", publisher, map[string]string{"Stream": "nil: none"})

	readme.RequireTable(t, "docs/reference.md", "StreamConfig", *StreamConfig{}.withDefaults(), map[string]string{"MaxLens": "nil: none"})

	var subscriber SubscriberConfig
	subscriber.setDefaults()
	readme.RequireTable(t, "docs/reference.md", "SubscriberConfig", subscriber, map[string]string{
		"Backoff": "`ExponentialBackoff(time.Second, 10*time.Minute)`",
	})

	readme.RequireTable(t, "docs/reference.md", "scheduler.Config", scheduler.Config{KeyPrefix: DefaultKeyPrefix}, map[string]string{
		"Topics": "nil: all under the prefix",
	})
}
