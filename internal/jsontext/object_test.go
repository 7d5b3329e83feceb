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

// Read returns what Object wrote, to the millisecond.
func FuzzTextsComeBack(f *testing.F) {
	f.Add("", "", "")
	f.Add("a", "k", "v")
	f.Add("\xff", "k\xfe", "\xfd")
	f.Add("�", "k", "�\xff")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		want := all{
			Text: text, Name: name(value), Metadata: map[string]string{key: value, "plain": "x"}, Names: []string{key, value},
			At: time.UnixMilli(int64(len(text))).UTC(), Lasts: time.Duration(len(key)), Err: errors.New(text),
		}
		if value != "" {
			want.Payload = []byte(value)
		}
		written, err := jsontext.Object(want)
		if err != nil {
			t.Fatal(err)
		}
		var got all
		if err := jsontext.Read(written, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%#v came back as %#v", want, got)
		}
	})
}

func TestReadSaysNothingOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	old := all{Text: "text", Names: []string{"name"}, At: time.UnixMilli(1), Lasts: 1, Err: errors.New("why")}
	for _, text := range []string{`null`, `{}`, `{"unknown":{"text":1},"text":null,"names":null,"at":null,"lasts":null,"error":null}`} {
		got := old
		require.NoError(t, jsontext.Read([]byte(text), &got))
		require.Equal(t, old, got)
	}
	got := old
	require.NoError(t, jsontext.Read([]byte(`{"names":[],"metadata":{},"payload":"","lasts":"unlimited"}`), &got))
	old.Names, old.Payload, old.Lasts = nil, []byte{}, -1
	require.Equal(t, old, got)
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
		`{"metadata":{"a":"b"},"metadata_base64":{"YQ==":"Yg=="}}`: "metadata_base64: a key is repeated",
		`{"names":"a"}`:                                            "names: ",
		`{"names_base64":["!"]}`:                                   "names_base64: ",
		`{"at":"soon"}`:                                            "at: ",
		`{"lasts":"soon"}`:                                         "lasts: ",
		`{"lasts":90}`:                                             "lasts: ",
		`{"error":1,"text":1}`:                                     "text: json: cannot unmarshal number into Go value of type string\nerror: ",
		"{\"a\":\"\xff\"}":                                         "not UTF-8",
		`[`:                                                        "unexpected end",
		`[]`:                                                       "cannot unmarshal array",
	} {
		require.ErrorContains(t, jsontext.Read([]byte(text), &all{}), want, text)
	}
}
