package admin

import (
	"fmt"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// StayReason is why messages stay in their topic.
type StayReason string

const (
	// StayInUse means that a group has the message ready or in hand, or got it while Move ran.
	// Subscribers of the old topic get it.
	StayInUse StayReason = "in_use"
	// StayScheduled means that the message is a waiting occurrence of a recurring schedule. A
	// program that runs the schedule in the new topic makes it anew.
	StayScheduled StayReason = "scheduled"
	// StayDelayID means that another message has its delay ID in the new topic.
	StayDelayID StayReason = "delay_id_taken"
	// StayGroup means that the new topic lacks a group in which the message retries or is dead,
	// such as one of a Broadcast subscription.
	StayGroup StayReason = "group_missing"
	// StayLingering means that the new topic had the message before, and its takeover window, or a
	// group that is being removed, has not forgotten it. Call Move again when that is over.
	StayLingering StayReason = "lingering"
)

// Stay is how many messages stay for a reason.
type Stay struct {
	Reason   StayReason `json:"reason"`
	Messages int        `json:"messages"`

	// Names are those of the delay IDs, schedules or groups, a hundred at most.
	Names []string `json:"names,omitempty"`
}

// stayNames is how many names a Stay has at most.
const stayNames = 100

// named names what stays. How many names there are is not known beyond stayNames.
func (s Stay) named() string {
	switch {
	case len(s.Names) == 0:
		return ""
	case len(s.Names) < stayNames:
		return ": " + texts.Names(s.Names)
	default:
		return ", such as " + texts.Names(s.Names[:texts.NamesMost])
	}
}

// Moved is what Move did.
type Moved struct {
	To string `json:"to"`

	// Messages is how many messages moved, or would move in a dry run.
	Messages int `json:"messages"`

	// Created are the groups that Move made in To, or would make. NewTopic tells that it made To.
	Created  []string `json:"created"`
	NewTopic bool     `json:"new_topic"`

	// Stay says why chosen messages stay.
	Stay []Stay `json:"stay"`

	// Ready and InHand are what the old topic has in these states at the end, once for each group
	// that has it. Its subscribers get them.
	Ready  int `json:"ready"`
	InHand int `json:"in_hand"`
}

// Explain says in sentences what stays and why. The tool prints them.
func (m Moved) Explain() (sentences []string) {
	for _, s := range m.Stay {
		why := map[StayReason]string{
			StayInUse:     "a group has them ready or in hand, and gets them from the old topic",
			StayScheduled: "they are occurrences of schedules, and programs make them anew in the new topic",
			StayDelayID:   fmt.Sprintf("other messages have their delay IDs in topic %q", m.To),
			StayGroup:     fmt.Sprintf("topic %q lacks their groups", m.To),
			StayLingering: fmt.Sprintf("topic %q had them before and has not forgotten them; repeat this in a minute", m.To),
		}[s.Reason]
		verb := "stay"
		if s.Messages == 1 {
			verb = "stays"
		}
		sentences = append(sentences, fmt.Sprintf("%s %s, because %s%s.", texts.Many(s.Messages, "message"), verb, why, s.named()))
	}
	if m.Ready+m.InHand > 0 {
		sentences = append(sentences, fmt.Sprintf("%s ready and %s in hand in the old topic: keep its subscribers until they are done.", texts.Number(m.Ready), texts.Number(m.InHand)))
	}
	return sentences
}

func (m *Moved) stays(reason StayReason, name string) {
	at := slices.IndexFunc(m.Stay, func(s Stay) bool { return s.Reason == reason })
	if at < 0 {
		at = len(m.Stay)
		m.Stay = append(m.Stay, Stay{Reason: reason})
	}
	s := &m.Stay[at]
	s.Messages++
	if name != "" && len(s.Names) < stayNames && !slices.Contains(s.Names, name) {
		s.Names = append(s.Names, name)
	}
}
