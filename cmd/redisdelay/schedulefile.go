package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // an image from scratch has no time zones

	"github.com/ThreeDotsLabs/watermill/message"
	"go.yaml.in/yaml/v3"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// jsonText matches the texts in valid JSON.
var jsonText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// readSchedules reads the schedules of a YAML or JSON file. The error has all faults, each with its
// line and field.
func readSchedules(name string) ([]periodic.Schedule, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if json.Valid(text) { // of YAML, but for the escapes in its texts
		text = jsonText.ReplaceAllFunc(text, func(quoted []byte) []byte {
			var plain string
			_ = json.Unmarshal(quoted, &plain) // it is valid
			return []byte(strconv.QuoteToASCII(plain))
		})
	}
	f := &scheduleFile{name: name, lines: map[[2]string]int{}}
	var document, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err = decoder.Decode(&document)
	if err == nil {
		if end := decoder.Decode(&more); end == nil {
			err = fmt.Errorf("yaml: line %d: there is a second document", more.Line)
		} else if !errors.Is(end, io.EOF) {
			err = end
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w (a text that begins with *, @ or { needs quotes)", name, err)
	}
	schedules := f.read(&document)
	slices.SortStableFunc(f.faults, func(a, b fileFault) int { return a.line - b.line })
	var errs []error
	for _, fault := range f.faults {
		errs = append(errs, fmt.Errorf("%s, line %d: %s", name, fault.line, strings.ReplaceAll(fault.text, "\n", "; ")))
	}
	return schedules, errors.Join(errs...)
}

// scheduleFile is a file of schedules that is read.
type scheduleFile struct {
	name   string
	faults []fileFault
	lines  map[[2]string]int // of the schedules that were read, by topic and name
}

type fileFault struct {
	line int
	text string
}

func (f *scheduleFile) fault(at *yaml.Node, format string, args ...any) {
	f.faults = append(f.faults, fileFault{max(at.Line, 1), fmt.Sprintf(format, args...)})
}

func (f *scheduleFile) read(document *yaml.Node) (schedules []periodic.Schedule) {
	if len(document.Content) == 0 { // an empty file
		f.fault(document, "schedules is missing: the list of schedules")
		return nil
	}
	root := document.Content[0]
	list := f.mapping(root, "the file", "schedules").nodes["schedules"]
	switch {
	case list == nil && len(f.faults) == 0:
		f.fault(root, "schedules is missing: the list of schedules")
	case list != nil && list.Kind != yaml.SequenceNode:
		f.fault(list, "schedules must be a list")
	case list != nil:
		for _, one := range list.Content {
			schedules = append(schedules, f.schedule(one))
		}
	}
	return schedules
}

// mapping is the fields of a mapping in the file.
type mapping struct {
	file  *scheduleFile
	node  *yaml.Node
	nodes map[string]*yaml.Node
}

// mapping reads a mapping that may have the known fields, or any if none is given. Faults call it
// what. A field that is null is none.
func (f *scheduleFile) mapping(node *yaml.Node, what string, known ...string) mapping {
	m := mapping{f, node, map[string]*yaml.Node{}}
	if node = aliased(node); node.Kind != yaml.MappingNode {
		f.fault(m.node, "%s must have fields, each a name, a colon, and a value", what)
		return m
	}
	seen := map[string]int{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], aliased(node.Content[i+1])
		switch name := key.Value; {
		case key.Kind != yaml.ScalarNode || len(known) > 0 && !slices.Contains(known, name):
			f.fault(key, "%q is no field of %s; it may have %s", name, what, strings.Join(known, ", "))
		case seen[name] > 0:
			f.fault(key, "%s is there twice; the first is in line %d", name, seen[name])
		default:
			seen[name] = key.Line
			if value.Tag != "!!null" {
				m.nodes[name] = value
			}
		}
	}
	return m
}

func aliased(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// at returns the node of a field, or where it would be.
func (m mapping) at(field string) *yaml.Node { return cmp.Or(m.nodes[field], m.node) }

// text returns a field as it is written, without quotes; "" if it is missing.
func (m mapping) text(field string) string {
	switch node := m.nodes[field]; {
	case node == nil:
		return ""
	case node.Kind != yaml.ScalarNode:
		m.file.fault(node, "%s must be a text; put it into quotes", field)
		return ""
	default:
		return node.Value
	}
}

// readField sets a field's value from its text, unless it is missing.
func readField[T any](m mapping, field string, to *T, example string, parse func(string) (T, error)) {
	text := m.text(field)
	if text == "" {
		return
	}
	value, err := parse(text)
	if err != nil {
		m.file.fault(m.at(field), "%s is %q; it must be %s", field, text, example)
		return
	}
	*to = value
}

// scheduleFields are the fields of a schedule in the file, by those of periodic.Schedule.
var scheduleFields = []struct{ field, of string }{
	{"name", "Name"}, {"topic", "Topic"}, {"spec", "Spec"}, {"location", "Location"}, {"payload", ""}, {"payload_file", ""}, {"metadata", ""},
	{"misfire", "Misfire"}, {"misfire_within", "MisfireWithin"}, {"jitter", "Jitter"}, {"start", "Start"}, {"end", "End"},
}

func (f *scheduleFile) schedule(node *yaml.Node) periodic.Schedule {
	var known []string
	names := map[string]string{}
	for _, pair := range scheduleFields {
		known = append(known, pair.field)
		names[pair.of] = pair.field
	}
	m := f.mapping(node, "a schedule", known...)
	s := periodic.Schedule{Name: m.text("name"), Topic: m.text("topic"), Spec: m.text("spec"), Misfire: periodic.Misfire(m.text("misfire"))}
	const instant = "a time such as 2026-01-01T00:00:00+01:00"
	readField(m, "location", &s.Location, "the name of a time zone, such as Europe/Berlin", location)
	readField(m, "misfire_within", &s.MisfireWithin, "a duration such as 24h", time.ParseDuration)
	readField(m, "jitter", &s.Jitter, "a duration such as 10m", time.ParseDuration)
	readField(m, "start", &s.Start, instant, parseRFC3339)
	readField(m, "end", &s.End, instant, parseRFC3339)
	f.message(m, &s)

	if err := s.Validate(); err != nil {
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			var fault *redisdelay.FieldError
			if !errors.As(err, &fault) {
				f.fault(node, "%v", err)
				continue
			}
			field := names[fault.Field]
			if m.nodes[field] == nil {
				fault = &redisdelay.FieldError{Fault: "is missing"}
			}
			f.fault(m.at(field), "%s %s", field, fault.Fault)
		}
	}
	if first := f.lines[[2]string{s.Topic, s.Name}]; first > 0 && s.Name != "" {
		f.fault(m.at("name"), "name is %q, which another schedule of topic %q has, in line %d", s.Name, s.Topic, first)
	}
	f.lines[[2]string{s.Topic, s.Name}] = m.at("name").Line
	return s
}

// location returns a time zone. That of the machine is refused, because other machines may have
// another one.
func location(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, errors.New("not the same everywhere")
	}
	return time.LoadLocation(name)
}

func parseRFC3339(text string) (time.Time, error) { return time.Parse(time.RFC3339, text) }

// ofOccurrences are metadata that each occurrence gets.
var ofOccurrences = []string{redisdelay.DelayKey, redisdelay.DelayUntilKey, redisdelay.DelayIDKey, redisdelay.DelayIDModeKey,
	redisdelay.DelayIDWindowKey, periodic.ScheduleKey, periodic.OccurrenceKey, periodic.PreviousKey}

// message gives the schedule its message, and a revision that changes with that.
func (f *scheduleFile) message(m mapping, s *periodic.Schedule) {
	payload := []byte(m.text("payload"))
	if file := m.text("payload_file"); file != "" {
		if m.nodes["payload"] != nil {
			f.fault(m.at("payload_file"), "payload_file is there, and payload too; want one of them")
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(f.name), file)
		}
		var err error
		if payload, err = os.ReadFile(file); err != nil {
			f.fault(m.at("payload_file"), "payload_file: %v", err)
		}
	}
	metadata := message.Metadata{}
	if node := m.nodes["metadata"]; node != nil {
		values := f.mapping(node, "metadata")
		for _, key := range slices.Sorted(maps.Keys(values.nodes)) {
			if slices.Contains(ofOccurrences, key) {
				f.fault(values.at(key), "metadata has %s, which each occurrence gets from its schedule", key)
				continue
			}
			metadata[key] = values.text(key)
		}
	}
	s.Message = func(periodic.Occurrence) (*message.Message, error) {
		msg := message.NewMessage("", payload)
		maps.Copy(msg.Metadata, metadata)
		return msg, nil
	}
	msg, _ := s.Message(periodic.Occurrence{})
	if err := redisdelay.CheckMetadata(msg); err != nil {
		f.fault(m.at("metadata"), "metadata: %v", err)
	} else if delayed, _ := redisdelay.Delayed(msg); delayed {
		f.fault(m.at("metadata"), "metadata has a delay, which each occurrence gets from its schedule")
	}
	content, _ := json.Marshal([]any{payload, metadata}) // they are plain
	hash := sha256.Sum256(content)
	s.Revision = hex.EncodeToString(hash[:8])
}
