package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

const (
	importPath = "/import"
	maxFile    = 16 << 20         // of a file that is imported; the tool has no limit
	maxSent    = 256 << 20        // is read of one that is longer, so that browsers show the answer
	maxFiles   = 4                // that wait for somebody who confirms
	fileFor    = 15 * time.Minute // how long one waits
)

// importing publishes the dead letters of a file. The file is taken by confirmed, which adds does.
var importing = work{looks: lookAtImport, Operation: admin.Operation{Name: "import", Verb: "import", Unit: "dead letter", Of: admin.OfTopic, Partitions: true,
	Effect: "Publish exported dead letters as new messages, due now, to every group of the topic. Those that were imported within the last hour are left out."}}

var errNoFile = &refusal{http.StatusNotFound, "The file is not here any more. The audit log says whether it was imported. If not, choose it again."}

func lookAtImport(ctx context.Context, d *Dashboard, t target) (prospect, error) {
	file, ok := d.uploads.get(t.File)
	if !ok || file.topic != t.Topic || file.job != "" {
		return prospect{}, errNoFile
	}
	stats, err := d.read(ctx, t.Topic)
	if err != nil {
		return prospect{}, err
	}
	p := prospect{Count: file.letters, Said: []string{"They were dead in " + groupsNamed(file.from) + "."}}
	for _, g := range stats.Groups {
		if !slices.Contains(file.from, g.Group) {
			p.Others = append(p.Others, g.Group)
		}
	}
	if len(p.Others) > 0 {
		p.Said = append(p.Said, "The topic also has "+groupsNamed(p.Others)+". An import delivers to all its groups.")
	}
	return p, nil
}

// imports returns the work that publishes the dead letters of a text.
func imports(text []byte) work {
	w := importing
	w.does = func(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error) {
		done, err := d.admin.ImportDead(ctx, t.Topic, admin.ReadLetters(text), admin.Import{EveryGroup: t.Every, Progress: tell})
		did := result{done: done.Letters}
		if done.LeftOut > 0 {
			did.said = []string{texts.Many(done.LeftOut, "dead letter") + " left out, imported within the last hour."}
		}
		if err != nil {
			did.said = append(did.said, "Choose the file again for the others. Those that are imported are left out then.")
		}
		return did, err
	}
	return w
}

// uploads are files that wait for somebody who confirms what is done with them.
type uploads struct {
	mu  sync.Mutex
	all []*upload // the newest last
}

// upload is a file of dead letters.
type upload struct {
	name    string // that nobody can guess
	topic   string
	text    []byte
	letters int
	from    []string // groups
	job     string   // that imports it; "" at first. Then text is nil.
	timer   *time.Timer
}

// put keeps a file for a while, and returns its name.
func (u *uploads) put(file upload) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.all) == maxFiles {
		u.all[0].timer.Stop()
		u.all = slices.Delete(u.all, 0, 1)
	}
	file.name = rand.Text()
	file.timer = time.AfterFunc(fileFor, func() { u.forget(file.name) })
	u.all = append(u.all, &file)
	return file.name
}

func (u *uploads) get(name string) (upload, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, file := range u.all {
		if file.name == name {
			return *file, true
		}
	}
	return upload{}, false
}

// jobOf returns the job that imports a file, "" if there is none.
func (u *uploads) jobOf(name string) string {
	file, _ := u.get(name)
	return file.job
}

// start begins the job of a file, once. A form that is sent twice gets the same job.
func (u *uploads) start(name string, begin func(text []byte) (job string, err error)) (job string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.all, func(file *upload) bool { return file.name == name })
	if i < 0 {
		return "", errNoFile
	}
	file := u.all[i]
	if file.job == "" {
		if file.job, err = begin(file.text); err == nil {
			file.text = nil
		}
	}
	return file.job, err
}

func (u *uploads) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = slices.DeleteFunc(u.all, func(file *upload) bool { return file.name == name })
}

// drop drops all files.
func (u *uploads) drop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, file := range u.all {
		file.timer.Stop()
	}
	u.all = nil
}

var errNoImport = &refusal{http.StatusForbidden, "You may not see metadata and payloads, so you may not import them."}

// bodyKey has the body of a request with a file, until it is known who sends it.
type bodyKey struct{}

// upload takes a file of dead letters, and leads to the page that says what an import would do.
func (d *Dashboard) upload(w http.ResponseWriter, r *http.Request) {
	user, _ := r.Context().Value(userKey{}).(User)
	c := &call{Request: r, user: user, ctx: r.Context()}
	if user.Role < Operator {
		d.fail(w, c, errReadOnly)
		return
	}
	if !user.Contents {
		d.fail(w, c, errNoImport)
		return
	}
	if d.uploading.take(user.Name) != granted {
		d.fail(w, c, &refusal{http.StatusTooManyRequests, "Another file is being read. Try again in a moment."})
		return
	}
	defer d.uploading.give(user.Name)
	body, _ := r.Context().Value(bodyKey{}).(io.ReadCloser)
	r.Body = http.MaxBytesReader(w, body, maxSent)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.limits.upload))
	file := upload{topic: c.URL.Query().Get("t")}
	var err error
	if file.text, err = fileOf(r); err == nil {
		reading, end := context.WithTimeout(c.ctx, workFor)
		defer end()
		var would admin.Imported
		would, err = d.admin.ImportDead(reading, file.topic, admin.ReadLetters(file.text), admin.Import{DryRun: true})
		file.letters, file.from = would.Letters, would.From
	}
	switch {
	case errors.Is(err, admin.ErrInvalidArgument):
		err = bad(sentence(err) + " Nothing was changed.")
	case err == nil && file.letters == 0:
		err = bad("The file has no dead letter. Nothing was changed.")
	}
	if err != nil {
		d.fail(w, c, err)
		return
	}
	http.Redirect(w, r, d.address("/confirm", "do", importing.Name, "t", file.topic, "file", d.uploads.put(file)), http.StatusSeeOther)
}

// fileOf returns the file of a form. A longer one than maxFile is read to its end, and refused.
func fileOf(r *http.Request) ([]byte, error) {
	parts, err := r.MultipartReader()
	var part *multipart.Part
	for err == nil && (part == nil || part.FormName() != "file") {
		part, err = parts.NextPart()
	}
	if errors.Is(err, io.EOF) {
		return nil, bad("Choose a file. Nothing was changed.")
	}
	var text bytes.Buffer
	n := int64(0)
	if err == nil {
		if n, err = io.Copy(&text, io.LimitReader(part, maxFile+1)); err == nil && n > maxFile {
			text.Reset()
			_, err = io.Copy(io.Discard, part)
		}
	}
	if long := (*http.MaxBytesError)(nil); n > maxFile || errors.As(err, &long) {
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("The page takes a file of at most %d MiB. Use the tool: redisdelay dead import. Nothing was changed.", maxFile>>20)}
	}
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "The file cannot be read: " + strings.TrimSuffix(err.Error(), ".") + ". Nothing was changed."}
	}
	return bytes.Clone(text.Bytes()), nil // without the room to grow
}
