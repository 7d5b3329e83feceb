package faulttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// outage adds an outage from ago ms before until now.
func (s *tale) outage(ago int64) *tale {
	return s.tell(Event{Kind: Outage, Sent: (s.now + 1 - ago) * int64(time.Millisecond)})
}

func (s *tale) worker(kind Kind, by string) *tale { return s.tell(Event{Kind: kind, By: by}) }

func (s *tale) again() *tale { return s.claimed("b", "b:1:0").acked("b", "b:1:0") }

// other adds another message of the group, claimed and acked after takes ms.
func (s *tale) other(id string, due, takes int64) *tale {
	s.tell(Event{Kind: Publish, UUID: "m" + id, Sum: "sum"}, Event{Kind: Published, UUID: "m" + id})
	s.claimed("c", "c:"+id+":0", func(claimed, start *Event) {
		claimed.ID, start.ID, start.UUID, claimed.Due, start.Due = id, id, "m"+id, due, due
	})
	ack := Event{Kind: Settle, By: "c", ID: id, Token: "c:" + id + ":0", Script: "ack", Of: 1}
	return s.wait(takes).tell(ack)
}

// leased returns a tale with a message under a lease of 100 ms.
func leased() *tale { return begin().claimed("a", "a:1:0") }

func TestOutagesDoNotCountForTheReturnTime(t *testing.T) {
	t.Parallel()
	nack := func(s *tale) *tale { return s.nacked("a", "a:1:0", 50) }
	backlog := func(s *tale) *tale { // messages that were due before
		for i := range 30 {
			s.other(fmt.Sprint(i+2), 900, 100)
		}
		return s
	}
	for name, s := range map[string]*tale{
		"the server is not there":                     nack(leased()).wait(3000).outage(2500).again(),
		"nor for as long as workers then wait":        nack(leased()).wait(1500).outage(1500).wait(2400).again(),
		"it was not there when the lease began":       leased().wait(1500).outage(1500).wait(2400).again(),
		"the outage is longer than the lease":         leased().wait(3000).outage(2500).again(),
		"nobody is at work":                           nack((&tale{now: 990}).worker(Up, "a").published("m", 0).claimed("a", "a:1:0")).worker(Down, "a").wait(3000).worker(Up, "b").again(),
		"all are frozen":                              (&tale{now: 990}).worker(Up, "a").published("m", 0).claimed("a", "a:1:0").worker(Down, "a").wait(3000).worker(Up, "a").again(),
		"a claim had no answer":                       nack(leased()).tell(Event{Kind: Ask, By: "x", Token: "x:1", Lease: 2000}).wait(3000).again(),
		"the lease was extended":                      leased().wait(50).tell(Event{Kind: Extend, By: "a", ID: "1", Token: "a:1:0", Lease: 3000, Script: "extend", Redis: 1060_000}).wait(3500).again(),
		"a nack had no answer":                        leased().settles("a", "nack", "a:1:0", 3000).wait(3500).again(),
		"a nack named an instant":                     leased().nacked("a", "a:1:0", -1).wait(3500).claimed("b", "b:1:0", due(4000)).acked("b", "b:1:0"),
		"consumers are busy with what was due before": backlog(nack(leased())).again(),
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, s.check(Rules{Return: time.Second}))
		})
	}
}

func TestCheckerFindsLateReturnsDespiteOutages(t *testing.T) {
	t.Parallel()
	nack := func(s *tale) *tale { return s.nacked("a", "a:1:0", 50) }
	for name, s := range map[string]*tale{
		"the outage was shorter":             nack(leased()).wait(500).outage(500).wait(3000).again(),
		"the outage was before":              begin().wait(3000).outage(3000).wait(10_000).claimed("a", "a:1:0").nacked("a", "a:1:0", 50).wait(2000).again(),
		"the outage came after":              nack(leased()).wait(2000).again().wait(3000).outage(3000),
		"its lease was lost in an outage":    leased().wait(300).outage(300).wait(2500).again(),
		"another was at work":                nack((&tale{now: 990}).worker(Up, "a").worker(Up, "b").published("m", 0).claimed("a", "a:1:0")).worker(Down, "a").wait(2000).again(),
		"the lost claim was before":          begin().tell(Event{Kind: Ask, By: "x", Token: "x:1", Lease: 9000}).claimed("a", "a:1:0").nacked("a", "a:1:0", 50).wait(2000).again(),
		"what was due later came before":     nack(leased()).other("2", 900, 1100).other("3", 2110, 1000).again(),
		"consumers were busy for a part":     nack(leased()).wait(100).other("2", 900, 100).wait(2500).again(),
		"Redis says that it was due by then": nack(leased()).wait(2000).claimed("b", "b:1:0", due(3000)).acked("b", "b:1:0"),
		"a nack had no answer":               leased().settles("a", "nack", "a:1:0", 50).wait(2000).again(),
		"it was given back":                  leased().settles("a", "release", "a:1:0", 0).settled("a", "release", "a:1:0", 0).wait(2000).again(),
	} {
		t.Run(name, func(t *testing.T) {
			found := s.check(Rules{Return: time.Second})
			require.Len(t, found, 1)
			require.Equal(t, ReturnTime, found[0].Property)
		})
	}
}
