package relay

import (
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/readme"
)

func TestConfigurationTableIsTrue(t *testing.T) {
	var config Config
	config.setDefaults()
	readme.RequireTable(t, "../docs/relay.md", "relay.Config", config, map[string]string{
		"Subscriber":       "`Client` required",
		"Topics":           "nil: all under the prefix",
		"DestinationTopic": "the same name",
		"Permanent":        "no error is",
	})
}
