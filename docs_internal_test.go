package redisdelay

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func TestConfigurationTablesInTheREADMEAreTrue(t *testing.T) {
	var publisher PublisherConfig
	publisher.setDefaults()
	requireTable(t, "PublisherConfig", publisher, map[string]string{"Stream": "nil: none"})

	requireTable(t, "StreamConfig", *StreamConfig{}.withDefaults(), map[string]string{"MaxLens": "nil: none"})

	var subscriber SubscriberConfig
	subscriber.setDefaults()
	requireTable(t, "SubscriberConfig", subscriber, map[string]string{
		"Backoff": "`ExponentialBackoff(time.Second, 10*time.Minute)`",
	})

	requireTable(t, "scheduler.Config", scheduler.Config{KeyPrefix: DefaultKeyPrefix}, map[string]string{
		"Topics": "nil: all under the prefix",
	})
}

// requireTable checks that the table under a heading has the fields of a configuration, in order, with
// their defaults. said are defaults that a value does not show.
func requireTable(t *testing.T, heading string, config any, said map[string]string) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(readme), "\n### "+heading+"\n")
	require.True(t, found, "README.md has no heading %s", heading)
	section, _, _ = strings.Cut(section, "\n#")

	var want []string
	v := reflect.ValueOf(config)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		value, ok := said[name]
		if !ok {
			value = inWords(v.Field(i).Interface())
		}
		want = append(want, fmt.Sprintf("| `%s` | %s |", name, value))
	}
	require.Equal(t, want, regexp.MustCompile("(?m)^\\| `.*?\\|.*?\\|").FindAllString(section, -1), heading)
}

// inWords writes a default the way the README does.
func inWords(value any) string {
	switch value := value.(type) {
	case nil:
		return "required"
	case string:
		return fmt.Sprintf("`%q`", value)
	case BinaryMarshaler:
		return "`BinaryMarshaler{}`"
	case int:
		switch {
		case value > 0 && value%(1<<20) == 0:
			return fmt.Sprintf("%d MiB", value>>20)
		case value >= 1000:
			return fmt.Sprintf("%d,%03d", value/1000, value%1000)
		}
	case time.Duration:
		switch {
		case value == 0:
		case value%(24*time.Hour) == 0:
			return fmt.Sprintf("%d days", value/(24*time.Hour))
		case value%time.Hour == 0:
			return fmt.Sprintf("%dh", value/time.Hour)
		case value%time.Minute == 0:
			return fmt.Sprintf("%dm", value/time.Minute)
		}
	}
	return fmt.Sprint(value)
}
