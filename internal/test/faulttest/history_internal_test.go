package faulttest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHistoryIsReadAsItGrows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := history{reader: reader{dir: dir}}
	c := counter{reader: reader{dir: dir}}
	journals := map[string]*Journal{}
	for _, by := range []string{"a", "b"} {
		j, err := OpenJournal(dir, by)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, j.Close()) })
		journals[by] = j
	}
	var want []int64
	expect := func(by string, at ...int64) {
		t.Helper()
		for _, at := range at {
			journals[by].Write(Event{Kind: Start, At: at})
		}
		want = append(want, at...)
		slices.Sort(want)
		events, err := h.now()
		require.NoError(t, err)
		var found []int64
		for _, e := range events {
			found = append(found, e.At)
		}
		require.Equal(t, want, found)
		n, err := c.count(Start)
		require.NoError(t, err)
		require.Equal(t, len(want), n)
		slices.Reverse(events) // changes only the copy
	}
	expect("a")
	expect("a", 10, 20, 40)
	expect("b", 15, 30, 50) // written after later events
	expect("b", 60)
	expect("a", 5)
	expect("a")

	cut, err := os.OpenFile(filepath.Join(dir, "c.jsonl"), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cut.Close()) })
	_, err = cut.WriteString(`{"kind":"start","by":"c","at":45`)
	require.NoError(t, err)
	expect("a")
	_, err = cut.WriteString("}\n")
	require.NoError(t, err)
	want = append(want, 45)
	expect("a", 70)
	_, err = cut.WriteString("no event\n")
	require.NoError(t, err)
	_, err = h.now()
	require.ErrorContains(t, err, "no event")
}
