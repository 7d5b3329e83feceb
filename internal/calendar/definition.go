package calendar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Definition is what Redis has of a schedule. Two programs whose definitions differ have different
// occurrences.
type Definition struct {
	Spec    string `json:"spec"`
	Zone    string `json:"zone"`
	Rules   string `json:"rules,omitempty"` // of the zone, in the program that wrote it
	Jitter  string `json:"jitter,omitempty"`
	Start   string `json:"start,omitempty"`
	End     string `json:"end,omitempty"`
	Misfire string `json:"misfire"`
	Within  string `json:"within,omitempty"`

	Revision string `json:"revision,omitempty"`
}

// Read reads a definition from its text.
func Read(text string) (d Definition, err error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return d, fmt.Errorf("the definition cannot be read: %w", err)
	}
	return d, nil
}

// Series returns the instants of the schedule. It is an error if this program does not know the
// time zone, or knows other rules of it, because the instants would differ.
func (d Definition) Series() (Series, error) {
	location, err := d.Location()
	var start, end time.Time
	for text, to := range map[string]*time.Time{d.Start: &start, d.End: &end} {
		if text != "" && err == nil {
			*to, err = time.Parse(time.RFC3339Nano, text)
		}
	}
	if err != nil {
		return nil, err
	}
	found, err := Parse(d.Spec, location, start)
	if err != nil {
		return nil, err
	}
	return Within{found, start, end}, nil
}

// Location returns the time zone, with the errors of Series.
func (d Definition) Location() (*time.Location, error) {
	z, err := load(d.Zone)
	if err == nil && z.rules != d.Rules {
		err = fmt.Errorf("this program has other rules for the time zone %s", d.Zone)
	}
	return z.location, err
}

// zones are the time zones that were loaded, by name, because a tool may read thousands of
// definitions.
var zones sync.Map

type loaded struct {
	location *time.Location
	rules    string // "" of UTC
}

func load(name string) (loaded, error) {
	if found, ok := zones.Load(name); ok {
		return found.(loaded), nil
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return loaded{}, err
	}
	z := loaded{location: location}
	if location != time.UTC {
		z.rules = Rules(location)
	}
	zones.Store(name, z)
	return z, nil
}
