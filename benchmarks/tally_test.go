package main

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"
)

// numbered is the payload of message i.
func numbered(i int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(i))
}

// filled is a tally of messages that arrived one millisecond after the other from a time on.
func filled(n int, from time.Time) *tally {
	t := newTally(n)
	t.payload = len(numbered(0))
	for i := range n {
		t.arrive(numbered(i))
		t.arrived[i].Store(from.Add(time.Duration(i) * time.Millisecond).UnixNano())
	}
	return t
}

func TestTallyFindsFaults(t *testing.T) {
	last := numbered(9)
	for name, c := range map[string]struct {
		arrive [][]byte // after the first nine
		moved  bool     // the third is made to arrive before the second
		want   string
	}{
		"none":         {[][]byte{last}, false, ""},
		"twice":        {[][]byte{numbered(3), last}, false, "1 messages arrived more than once"},
		"cut":          {[][]byte{append(last, 0)}, false, "1 messages arrived with more or fewer than 8 bytes"},
		"out of order": {[][]byte{last}, true, "message 2 arrived before message 1"},
	} {
		t.Run(name, func(t *testing.T) {
			y := newTally(10)
			y.payload = len(last)
			for i := range 9 {
				y.arrive(numbered(i))
			}
			for _, payload := range c.arrive {
				y.arrive(payload)
			}
			if c.moved {
				y.arrived[2].Store(y.arrived[1].Load() - 1)
			}
			err := y.wait()
			if err == nil {
				err = y.checkOrder()
			}
			if got := fmt.Sprint(err); err != nil && got != c.want || err == nil && c.want != "" {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestLateness(t *testing.T) {
	due := time.UnixMilli(time.Now().UnixMilli())
	dues := make([]time.Time, 101)
	for i := range dues {
		dues[i] = due
	}
	found, err := filled(101, due).lateness(ours, dues)
	if err != nil {
		t.Fatal(err)
	}
	wanted := figures{lateMin: 0, lateP50: 50, lateP99: 99, lateMax: 100, earlyCount: 0}
	for what, want := range wanted {
		if found[what] != want {
			t.Errorf("%s: %v in place of %v", what, found[what], want)
		}
	}

	early := filled(101, due.Add(-time.Millisecond))
	if _, err := early.lateness(ours, dues); err == nil {
		t.Error("a message that is early is no error")
	}
	if found, err := early.lateness(asynqSystem, dues); err != nil || found[earlyCount] != 1 {
		t.Errorf("of a system that promises nothing: %v early, %v", found[earlyCount], err)
	}
}

func TestSummaryAndVerdict(t *testing.T) {
	of := trial{system: oursName, what: "something"}
	r := results{of.key(): {{lateP99: 3, lateMax: 3}, {lateP99: 1, lateMax: 9}, {lateP99: 2, lateMax: 1}}}
	if median, worst := r.get(of, lateP99), r.get(of, lateMax); median != 2 || worst != 9 {
		t.Errorf("of three rounds: %v in the middle, %v at worst", median, worst)
	}
	for _, c := range []struct {
		target
		want string
	}{
		{atMost(2, "", r.get(of, lateP99)), "met"},
		{atMost(1.9, "", r.get(of, lateP99)), "missed"},
		{atLeast(2, "", r.get(of, lateP99)), "met"},
		{atLeast(2.1, "", r.get(of, lateP99)), "missed"},
		{atMost(2, "", r.get(of, consumeRate)), "-"},
	} {
		if got := c.verdict(); got != c.want {
			t.Errorf("%v: %s in place of %s", c.target, got, c.want)
		}
	}
}
