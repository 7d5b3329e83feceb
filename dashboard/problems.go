package dashboard

import (
	"context"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// problem is something that is wrong, and the page where it can be mended.
type problem struct {
	admin.Problem
	Address string // "": nowhere
	Action  string // text of the link
}

// severities are the severities of problems, the worst first.
var severities = []admin.Severity{admin.Critical, admin.Violation, admin.Warning, admin.Notice}

// Tone is the class of the problem's mark.
func (p problem) Tone() string { return toneOf(p.Severity) }

func toneOf(s admin.Severity) string {
	if s == admin.Violation {
		s = admin.Critical
	}
	return string(s)
}

// linked returns problems with links, the worst first.
func (d *Dashboard) linked(all []admin.Problem) (problems []problem) {
	for _, p := range all {
		one := problem{Problem: p}
		switch {
		case p.Topic == "" || p.Kind == admin.MissingTopic:
		case p.Kind == admin.DeadLetters:
			one.Address, one.Action = d.address("/dead", "t", p.Topic, "g", p.Group), "Reasons"
		case slices.Contains([]admin.ProblemKind{admin.StoppedSchedule, admin.PausedSchedule, admin.MissedOccurrences}, p.Kind):
			one.Address, one.Action = d.address("/schedules", "t", p.Topic), "Schedules"
		case p.MessageID != "":
			one.Address, one.Action = d.address("/message", "t", p.Topic, "id", p.MessageID), "Message"
		default:
			one.Address, one.Action = d.address("/topic", "t", p.Topic), "Topic"
		}
		problems = append(problems, one)
	}
	slices.SortStableFunc(problems, func(a, b problem) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
	return problems
}

// diagnose finds out what is wrong with some topics and with Redis, and notes it for the list.
func (s *sweep) diagnose(ctx context.Context, topics []string) ([]admin.Problem, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	found, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: topics})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.general = nil
	of := map[string][]admin.Problem{}
	for _, p := range found.Problems {
		if p.Topic == "" {
			s.general = append(s.general, p)
		} else {
			of[p.Topic] = append(of[p.Topic], p)
		}
	}
	for _, topic := range topics {
		if k := s.topics[topic]; k != nil {
			k.problems = of[topic]
		}
	}
	return found.Problems, nil
}

// problems returns what is wrong with a topic, at most a moment ago.
func (d *Dashboard) problems(ctx context.Context, stats admin.Stats) ([]problem, error) {
	found, err := cached(ctx, &d.reads, "problems:"+stats.Topic, func(ctx context.Context) ([]admin.Problem, error) {
		return d.sweep.diagnose(ctx, plainOf(stats))
	})
	found = slices.DeleteFunc(slices.Clone(found), func(p admin.Problem) bool { return p.Topic == "" })
	return d.linked(found), err
}
