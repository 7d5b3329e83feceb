package periodic

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
)

// define returns the definition as a text.
func (s *Schedule) define() (string, error) {
	d := calendar.Definition{Spec: s.Spec, Zone: s.Location.String(), Misfire: string(s.Misfire), Revision: s.Revision}
	if s.Location != time.UTC {
		d.Rules = calendar.Rules(s.Location)
	}
	if s.Jitter > 0 {
		d.Jitter = s.Jitter.String()
	}
	if s.MisfireWithin > 0 {
		d.Within = s.MisfireWithin.String()
	}
	for at, text := range map[*time.Time]*string{&s.Start: &d.Start, &s.End: &d.End} {
		if !at.IsZero() {
			*text = at.UTC().Format(time.RFC3339Nano)
		}
	}
	text, err := json.Marshal(d)
	return string(text), err
}

// FromDefinition returns the schedule of a definition, which admin.Schedule has, without its Topic
// and Message. The error says what cannot be read. A time zone that this program does not know, or
// knows other rules of, is an error: the instants would differ. Errors wrap ErrInvalidConfig.
func FromDefinition(name, text string) (Schedule, error) {
	d, err := calendar.Read(text)
	if err != nil {
		return Schedule{}, field.Check("Definition", err)
	}
	s := Schedule{Name: name, Spec: d.Spec, Misfire: Misfire(d.Misfire), Revision: d.Revision}
	var errs []error
	s.Location, err = d.Location()
	errs = append(errs, err)
	for to, text := range map[*time.Duration]string{&s.Jitter: d.Jitter, &s.MisfireWithin: d.Within} {
		if text != "" {
			*to, err = time.ParseDuration(text)
			errs = append(errs, err)
		}
	}
	for to, text := range map[*time.Time]string{&s.Start: d.Start, &s.End: d.End} {
		if text != "" {
			*to, err = time.Parse(time.RFC3339Nano, text)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return s, field.Check("Definition", err)
	}
	return s, nil
}
