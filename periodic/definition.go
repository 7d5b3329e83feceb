package periodic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// definition is what Redis has of a schedule. Two programs whose definitions differ have different
// occurrences. Package admin reads it.
type definition struct {
	Spec    string `json:"spec"`
	Zone    string `json:"zone"`
	Rules   string `json:"rules,omitempty"` // of the zone, in this program
	Jitter  string `json:"jitter,omitempty"`
	Start   string `json:"start,omitempty"`
	End     string `json:"end,omitempty"`
	Misfire string `json:"misfire"`
	Within  string `json:"within,omitempty"`

	Revision string `json:"revision,omitempty"`
}

// define returns the definition as a text.
func (s *Schedule) define() (string, error) {
	d := definition{Spec: s.Spec, Zone: s.Location.String(), Misfire: string(s.Misfire), Revision: s.Revision}
	if s.Location != time.UTC {
		d.Rules = rules(s.Location)
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
// knows other rules of, is an error: the instants would differ.
func FromDefinition(name, text string) (Schedule, error) {
	var d definition
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return Schedule{}, fmt.Errorf("the definition cannot be read: %w", err)
	}
	s := Schedule{Name: name, Spec: d.Spec, Misfire: Misfire(d.Misfire), Revision: d.Revision}
	var errs []error
	var err error
	if s.Location, err = time.LoadLocation(d.Zone); err != nil {
		errs = append(errs, err)
	} else if s.Location != time.UTC && rules(s.Location) != d.Rules {
		errs = append(errs, fmt.Errorf("this program has other rules for the time zone %s", d.Zone))
	}
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
	return s, errors.Join(errs...)
}
