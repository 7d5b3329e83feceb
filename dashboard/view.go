package dashboard

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

//go:embed templates
var templates embed.FS

// view is what a template shows.
type view struct {
	Title  string
	Crumbs []crumb   // the pages above, outermost first
	Now    time.Time // by the server's clock
	Live   bool      // the page has news
	Data   any

	// These are set by show.
	User  User
	UTC   bool   // Config.UTC
	Self  string // address of the page
	Flash string // what the last change did
}

// crumb is a link to a page above.
type crumb struct{ Text, Address string }

// May returns whether the user may change things.
func (v *view) May() bool { return v.User.Role >= Operator }

// parse reads the templates, one set for each page.
func (d *Dashboard) parse() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(d.functions()).ParseFS(templates, "templates/layout.html", "templates/parts.html"))
	files, err := templates.ReadDir("templates")
	if err != nil {
		panic(err) // they are in the program
	}
	pages := map[string]*template.Template{}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".html")
		if name != "layout" && name != "parts" {
			pages[name] = template.Must(template.Must(layout.Clone()).ParseFS(templates, path.Join("templates", file.Name())))
		}
	}
	return pages
}

// address returns an address of the page: a path, and pairs of names and values. It leaves empty
// values out.
func (d *Dashboard) address(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	address := d.base + path
	if len(values) > 0 {
		address += "?" + values.Encode()
	}
	return address
}

// render returns a page, or a part of it.
func (d *Dashboard) render(name, part string, c *call, v *view) ([]byte, error) {
	v.User, v.UTC = c.user, d.config.UTC
	query := c.URL.Query()
	query.Del("f")
	v.Self = d.base + c.URL.EscapedPath() + "?" + query.Encode()
	var b bytes.Buffer
	if err := d.pages[name].ExecuteTemplate(&b, part, v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// show sends a page.
func (d *Dashboard) show(w http.ResponseWriter, c *call, status int, name string, v *view) {
	v.Flash = d.flashes.take(c.URL.Query().Get("f"))
	content, err := d.render(name, "layout.html", c, v)
	if err != nil {
		d.config.Logger.Error("The dashboard cannot show a page", "page", name, "error", err)
		d.refuse(w, &refusal{http.StatusInternalServerError, "Something went wrong in the page. The program's log has more."})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	d.write(w, status, content)
}

// fail shows an error as a page.
func (d *Dashboard) fail(w http.ResponseWriter, c *call, err error) {
	said := explain(err)
	var wrong typo
	if errors.As(err, &wrong) {
		if v, err := d.again(c, wrong); err == nil {
			d.show(w, c, said.Status, "confirm", v)
			return
		}
	}
	if said.Status >= http.StatusInternalServerError {
		d.config.Logger.Warn("The dashboard cannot answer", "path", c.URL.Path, "error", err)
	}
	v := &view{Title: said.Title, Crumbs: []crumb{{"Topics", d.address("/")}}, Data: said}
	if errors.Is(err, errReadOnly) && c.Method == http.MethodPost {
		d.config.Logger.Warn("Refused a change by the dashboard", "user", c.user.Name, "role", c.user.Role.String(), "path", c.URL.Path)
	}
	c.URL.RawQuery = ""
	d.show(w, c, said.Status, "error", v)
}

// news sends the live part of a page whenever it changes, as server-sent events.
func (d *Dashboard) news(w http.ResponseWriter, c *call, name string, build func(*call) (*view, error)) {
	switch d.streams.take(c.user.Name) {
	case granted:
		defer d.streams.give(c.user.Name)
	case full:
		d.config.Logger.Warn("Too many browsers are connected for news", "user", c.user.Name, "most", maxStreams)
		d.refuse(w, &refusal{http.StatusServiceUnavailable, "Too many browsers are connected."})
		return
	case refusedFirst:
		d.config.Logger.Warn("A user has too many pages open for news", "user", c.user.Name, "most", maxStreamsOfUser)
		fallthrough
	default:
		d.refuse(w, &refusal{http.StatusTooManyRequests, "You have too many pages open."})
		return
	}
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Time{})
	defer func() { _ = stream.SetWriteDeadline(time.Time{}) }()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	send := func(event string, content []byte) error {
		_ = stream.SetWriteDeadline(time.Now().Add(d.limits.write))
		text := "event: " + event + "\ndata: " + strings.ReplaceAll(strings.ReplaceAll(string(content), "\r", ""), "\n", "\ndata: ") + "\n\n"
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return stream.Flush()
	}
	w.WriteHeader(http.StatusOK)
	if stream.Flush() != nil {
		return
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	end := time.After(streamFor)
	var live, trouble []byte // what the browser has
	for silent := 0; ; silent++ {
		select {
		case <-ticks.C:
		case <-end:
			return
		case <-d.running.Done():
			return
		case <-c.ctx.Done():
			return
		}
		v, err := build(c)
		if c.ctx.Err() != nil {
			return
		}
		var problem []byte
		if err != nil {
			said, gone := explain(err), ""
			if said.Status < http.StatusInternalServerError {
				gone = " data-gone" // what the page is about, and not Redis
			}
			problem = fmt.Appendf(nil, `<p class="banner critical"%s>%s</p>`, gone, template.HTMLEscapeString(said.Text))
		} else if news, err := d.render(name, "live", c, v); err != nil {
			return
		} else if !bytes.Equal(news, live) {
			if live, silent = news, 0; send("live", news) != nil {
				return
			}
		}
		if !bytes.Equal(problem, trouble) {
			if trouble, silent = problem, 0; send("trouble", problem) != nil {
				return
			}
		}
		if silent >= 15 { // finds out whether the browser is there
			if silent = 0; send("alive", nil) != nil {
				return
			}
		}
	}
}
