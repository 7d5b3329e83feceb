package jsontext_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
)

type name string

type all struct {
	Text     string            `json:"text"`
	Name     name              `json:"name,omitempty"`
	Payload  []byte            `json:"payload,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Names    []string          `json:"names,omitempty"`
	At       time.Time         `json:"at"`
	Lasts    time.Duration     `json:"lasts,omitempty"`
	Err      error             `json:"error,omitempty"`
}

func TestTextsThatAreNotUTF8AreBase64(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value all
		want  string
	}{
		{all{}, `{"text":""}`},
		{all{Text: "a<b", Name: "ü", Payload: []byte("x"), Metadata: map[string]string{"k": "v"}, Names: []string{"a"}, Lasts: 90 * time.Second},
			`{"text":"a<b","name":"ü","payload":"x","metadata":{"k":"v"},"names":["a"],"lasts":"1m30s"}`},
		{all{Text: "\xff", Name: "a\xff", Payload: []byte{0xff, 0}, Err: errors.New("\xfe")},
			`{"text_base64":"/w==","name_base64":"Yf8=","payload_base64":"/wA=","error_base64":"/g=="}`},
		{all{Metadata: map[string]string{"k": "\xfe", "plain": "v"}}, `{"text":"","metadata_base64":{"aw==":"/g=="},"metadata":{"plain":"v"}}`},
		{all{Metadata: map[string]string{"\xff": "v"}}, `{"text":"","metadata_base64":{"/w==":"dg=="}}`},
		{all{Names: []string{"a", "\xff"}}, `{"text":"","names_base64":["YQ==","/w=="]}`},
	} {
		got, err := jsontext.Object(c.value)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
	_, err := jsontext.Object(struct{ NoName int }{})
	require.ErrorContains(t, err, "has no JSON name")
}

// Read returns the bytes that Object wrote.
func FuzzTextsComeBack(f *testing.F) {
	f.Add("", "", "")
	f.Add("a", "k", "v")
	f.Add("\xff", "k\xfe", "\xfd")
	f.Add("�", "k", "�\xff")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		written, err := jsontext.Object(all{Text: text, Metadata: map[string]string{key: value, "plain": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		read, err := jsontext.Read(written)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := read.Text("text"); got != text || err != nil {
			t.Errorf("%q came back as %q: %v", text, got, err)
		}
		want := map[string]string{key: value}
		if key != "plain" {
			want["plain"] = "x"
		} else {
			want[key] = "x"
		}
		if got, err := read.Texts("metadata"); !reflect.DeepEqual(got, want) || err != nil {
			t.Errorf("%q came back as %q: %v", want, got, err)
		}
	})
}

func TestFieldsThatCannotBeReadAreNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"text":1}`:                                               "text: ",
		`{"text_base64":"!"}`:                                      "text_base64: ",
		`{"text":"a","text_base64":"YQ=="}`:                        "both text and text_base64",
		`{"metadata":{"a":1}}`:                                     "metadata: ",
		`{"metadata_base64":{"!":""}}`:                             "metadata_base64: ",
		`{"metadata_base64":{"YQ==":"!"}}`:                         "metadata_base64: ",
		`{"metadata":{"a":"b"},"metadata_base64":{"YQ==":"Yg=="}}`: "a key is repeated",
	} {
		read, err := jsontext.Read([]byte(text))
		require.NoError(t, err)
		_, first := read.Text("text")
		_, second := read.Texts("metadata")
		require.ErrorContains(t, errors.Join(first, second), want)
	}
	_, err := jsontext.Read([]byte("{\"a\":\"\xff\"}"))
	require.ErrorContains(t, err, "not UTF-8")
	_, err = jsontext.Read([]byte("["))
	require.Error(t, err)
}
