package dashboard

import (
	"context"
	"embed"
	"hash/fnv"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"
)

//go:embed assets
var assets embed.FS

// route is one address of the page. All routes are in the list of Dashboard.route, so that a test
// can try each of them.
type route struct {
	method, path string
	needs        Role
	serve        http.HandlerFunc
}

// route makes the routes. Only POST changes anything, and only for an Operator. A check changes
// nothing, and is a POST because it is work.
func (d *Dashboard) route() {
	get := func(path string, name string, build func(*call) (*view, error)) {
		d.routes = append(d.routes, route{http.MethodGet, path, Viewer, d.page(name, build)})
	}
	post := func(path string, needs Role, do func(*call) (string, error)) {
		d.routes = append(d.routes, route{http.MethodPost, path, needs, d.change(needs, do)})
	}
	get("/{$}", "overview", d.overview)
	get("/topic", "topic", d.topic)
	get("/messages", "messages", d.messages)
	get("/message", "message", d.message)
	get("/find", "find", d.find)
	get("/upcoming", "upcoming", d.upcomingOf)
	get("/dead", "dead", d.dead)
	d.routes = append(d.routes, route{http.MethodGet, "/export", Viewer, d.guarded(Viewer, d.export)})
	get("/ended", "ended", d.ended)
	get("/worker", "worker", d.worker)
	get("/schedules", "schedules", d.schedules)
	get("/schedule", "schedule", d.schedule)
	get("/audit", "audit", d.audit)
	get("/problems", "problems", d.problemList)
	get("/memory", "memory", d.memory)
	get("/job", "job", d.job)
	get("/confirm", "confirm", d.confirm)
	get("/", "error", func(*call) (*view, error) { return nil, errNoPage })
	d.routes = append(d.routes, route{http.MethodPost, importPath, Operator, d.guarded(Operator, d.upload)})
	post("/check", Viewer, d.examine)
	post("/confirm", Operator, d.confirmed)
	post("/job/stop", Operator, d.stopJob)
	post("/pause", Operator, d.pause)
	post("/resume", Operator, d.resume)
	post("/limit/{do}", Operator, d.limit)
	post("/history/{do}", Operator, d.keepHistory)
	post("/release", Operator, d.release)
	post("/problems/{do}", Operator, d.ignore)
	post("/message/{do}", Operator, d.settle)
	post("/schedule/{do}", Operator, d.amend)

	d.mux = http.NewServeMux()
	for _, r := range d.routes {
		d.mux.HandleFunc(r.method+" "+r.path, r.serve)
	}
	d.mux.HandleFunc("GET /assets/{file}", d.asset)
}

// call is a request of a user who may make it.
type call struct {
	*http.Request
	user User
	ctx  context.Context // ends when Redis takes too long
}

// live returns whether the browser asks for the news of a page.
func (c *call) live() bool { return wantsNews(c.Request) }

func wantsNews(r *http.Request) bool { return r.Header.Get("Accept") == "text/event-stream" }

// q returns a value of the address or of the form. Fields of forms that nobody types have names of
// topics, groups and the like escaped, because browsers change control characters and bytes that
// are not UTF-8.
func (c *call) q(name string) string {
	if text, err := url.QueryUnescape(c.FormValue(name + "-escaped")); err == nil && text != "" {
		return text
	}
	return c.FormValue(name)
}

// guarded runs a handler for users with a role.
func (d *Dashboard) guarded(needs Role, do func(w http.ResponseWriter, c *call)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user, _ := r.Context().Value(userKey{}).(User)
		c := &call{Request: r, user: user, ctx: r.Context()}
		if user.Role < needs {
			d.fail(w, c, errReadOnly)
			return
		}
		if err := r.ParseForm(); err != nil {
			d.fail(w, c, &refusal{http.StatusBadRequest, "The form cannot be read: " + err.Error() + "."})
			return
		}
		do(w, c)
	}
}

// page serves a page, and its news to a browser that asks for an event stream.
func (d *Dashboard) page(name string, build func(*call) (*view, error)) http.HandlerFunc {
	return d.guarded(Viewer, func(w http.ResponseWriter, c *call) {
		if c.live() {
			d.news(w, c, name, build)
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, workFor)
		defer cancel()
		c.ctx = ctx
		v, err := build(c)
		if err != nil {
			d.fail(w, c, err)
			return
		}
		d.show(w, c, http.StatusOK, name, v)
	})
}

// change makes a change, and then has the browser go to the page that change returns.
func (d *Dashboard) change(needs Role, change func(*call) (string, error)) http.HandlerFunc {
	return d.guarded(needs, func(w http.ResponseWriter, c *call) {
		ctx, cancel := context.WithTimeout(c.ctx, workFor)
		defer cancel()
		c.ctx = ctx
		to, err := change(c)
		if err != nil {
			d.fail(w, c, err)
			return
		}
		http.Redirect(w, c.Request, to, http.StatusSeeOther)
	})
}

// asset serves a file of the program. Its address changes with its content, so that browsers may
// keep it.
func (d *Dashboard) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	content, err := fs.ReadFile(assets, path.Join("assets", path.Base(name)))
	if err != nil {
		d.refuse(w, &refusal{http.StatusNotFound, "There is no such file."})
		return
	}
	types := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
	kind := types[path.Ext(name)]
	if kind == "" {
		kind = "text/plain"
	}
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	d.write(w, http.StatusOK, content)
}

// assetAddress returns the address of a file.
func (d *Dashboard) assetAddress(name string) string {
	content, err := fs.ReadFile(assets, "assets/"+name)
	if err != nil {
		panic(err) // a template names a file that is not there
	}
	sum := fnv.New64a()
	_, _ = sum.Write(content)
	return d.base + "/assets/" + name + "?v=" + strconv.FormatUint(sum.Sum64(), 36)
}

// write sends an answer that is complete, to a browser that has to accept it in time.
func (d *Dashboard) write(w http.ResponseWriter, status int, content []byte) {
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetWriteDeadline(time.Now().Add(d.limits.write))
	defer func() { _ = deadlines.SetWriteDeadline(time.Time{}) }() // the connection may serve other handlers next
	w.WriteHeader(status)
	if _, err := w.Write(content); err == nil {
		_ = deadlines.Flush()
	}
}
