package redistest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/disk.c
var diskSource []byte

// Files are the data files of a server, by their names in its data directory. They are a snapshot
// and the append-only file, which has several parts since Redis 7.
type Files map[string][]byte

// StartWithDisk starts a server that records which writes the disk has confirmed, for Disk. It
// needs Linux and a C compiler, as -race does.
func StartWithDisk(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args, withDisk: true, prepare: (*Instance).noteDisk}).start(FreePort)
}

// noteDisk adds the library that records confirmed writes to the server's environment.
func (in *Instance) noteDisk() {
	in.t.Helper()
	if err := os.WriteFile(in.path("disk"), nil, 0o600); err != nil {
		in.t.Fatal(err)
	}
	in.env = append(in.env, in.preload("disk", diskSource), "REDISTEST_DISK="+in.path("disk"))
}

// Disk returns the files that a loss of power would leave now. All writes of the server until safe
// are in them; later writes may be missing. It is for servers of StartWithDisk.
//
// Each file is as at its last confirmation; unconfirmed writes by the operating system do not
// count. The loss of directory changes is not simulated: renamed files have their new names.
func (in *Instance) Disk() (files Files, safe time.Time) {
	in.t.Helper()
	notes, err := os.ReadFile(in.path("disk")) // read before the files, which may grow meanwhile
	if err != nil {
		in.t.Fatal(err)
	}
	confirmed := map[uint64]int64{} // by inode
	const size = 24                 // of a note: inode, length, time
	for note := range slices.Chunk(notes[:len(notes)/size*size], size) {
		confirmed[binary.NativeEndian.Uint64(note)] = int64(binary.NativeEndian.Uint64(note[8:]))
		safe = time.Unix(0, int64(binary.NativeEndian.Uint64(note[16:])))
	}
	files = in.Files()
	for name, text := range files {
		info, err := os.Stat(in.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			delete(files, name)
			continue
		}
		if err != nil {
			in.t.Fatal(err)
		}
		files[name] = text[:min(int64(len(text)), confirmed[inode(info)])]
	}
	return files, safe
}

// PowerLoss ends the server like a loss of power: writes that the disk has not confirmed are lost.
// The server stays down until Restart. Writes after safe may be missing.
func (in *Instance) PowerLoss() (safe time.Time) {
	in.t.Helper()
	in.Kill()
	files, safe := in.Disk()
	in.SetFiles(files)
	return safe
}

// Files returns the present data files of the server.
func (in *Instance) Files() Files {
	in.t.Helper()
	files := Files{}
	err := filepath.WalkDir(in.dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(in.dir, path)
		if err != nil || entry.IsDir() || !isData(name) {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			files[name] = text
		}
		return ignoreGone(err)
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return files
}

// isData returns whether the server reads a file at its start.
func isData(name string) bool {
	base := filepath.Base(name)
	return !strings.HasPrefix(base, "temp") && (strings.HasPrefix(base, "appendonly.aof") || filepath.Ext(base) == ".rdb")
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SetFiles replaces the data files of a server that is down. They count as confirmed by the disk.
// They may be from another server of the same version and arguments.
func (in *Instance) SetFiles(files Files) {
	in.t.Helper()
	for name := range in.Files() {
		if _, stays := files[name]; stays {
			continue
		}
		if err := os.Remove(in.path(name)); err != nil {
			in.t.Fatal(err)
		}
	}
	var notes []byte
	for name, text := range files {
		err := os.MkdirAll(filepath.Dir(in.path(name)), 0o700)
		if err == nil {
			err = os.WriteFile(in.path(name), text, 0o600)
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(in.path(name))
		}
		if err != nil {
			in.t.Fatal(err)
		}
		for _, number := range []uint64{inode(info), uint64(len(text)), uint64(time.Now().UnixNano())} {
			notes = binary.NativeEndian.AppendUint64(notes, number)
		}
	}
	if in.withDisk { // drop the notes of removed files, whose inode numbers may be reused
		if err := os.WriteFile(in.path("disk"), notes, 0o600); err != nil {
			in.t.Fatal(err)
		}
	}
}

// Log returns the part of the append-only file that grows.
func (f Files) Log() []byte { return f[f.log()] }

// Cut returns the files with Log cut to a length.
func (f Files) Cut(length int) Files {
	cut := maps.Clone(f)
	cut[f.log()] = cut[f.log()][:length]
	return cut
}

func (f Files) log() string {
	for name := range f {
		if strings.HasSuffix(name, ".incr.aof") || filepath.Base(name) == "appendonly.aof" {
			return name
		}
	}
	return ""
}
