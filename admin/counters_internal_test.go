package admin

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// A counter that somebody adds in Redis has a field here of the same name, and the other way round.
func TestEachCounterOfRedisIsRead(t *testing.T) {
	t.Parallel()
	apart := func(field string) bool { return strings.HasPrefix(field, "late_") || strings.HasSuffix(field, "_at") }
	for name, c := range map[string]struct {
		counters any
		fields   []string
		sums     []string // fields that are none in Redis
	}{
		"topic": {&Counters{}, queue.TopicCounters, nil},
		"group": {&GroupCounters{}, queue.GroupCounters, []string{"delivered"}},
	} {
		var asked []string
		readCounters(reflect.ValueOf(c.counters).Elem(), "", func(field string) int {
			asked = append(asked, field)
			return len(asked)
		})
		want := slices.Concat(slices.DeleteFunc(slices.Clone(c.fields), apart), c.sums)
		require.ElementsMatch(t, want, asked, name)
		require.Len(t, values(reflect.ValueOf(c.counters).Elem()), len(asked), "each is set")
	}
}

// values returns the numbers of a struct.
func values(v reflect.Value) map[int64]bool {
	found := map[int64]bool{}
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Struct {
			maps.Copy(found, values(v.Field(i)))
		} else {
			found[v.Field(i).Int()] = true
		}
	}
	return found
}
