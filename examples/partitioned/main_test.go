package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// line is a parcel, its stage and the plain topic.
var line = regexp.MustCompile(`(?m)^\d+\.\d{3}s  (parcel-\d+) +(\w+) +\((\S+)\)$`)

func TestReportsOfAParcelAreInOrder(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		got, topics := map[string][]string{}, map[string]bool{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			got[l[1]] = append(got[l[1]], l[2])
			topics[l[3]] = true
		}
		require.Len(t, got, parcels)
		for parcel, its := range got {
			require.Equal(t, stages, its, parcel)
		}
		require.Greater(t, len(topics), partitions/2, "they are spread")
		require.Contains(t, out, "\nAll 12 parcels reported [packed sent delivered] in order.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`parcel-`), func(t *testing.T, out string) {
		require.NotContains(t, out, "All 12 parcels")
	})
}
