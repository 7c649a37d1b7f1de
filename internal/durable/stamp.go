package durable

import (
	"io/fs"
	"os"
	"syscall"
)

// Stamp identifies the version of a file: it is another when the file was replaced or written. Stamps can
// be compared. The zero Stamp is that of a file that is not there.
type Stamp struct {
	size    int64
	changed int64 // nanoseconds of Unix time
	mode    fs.FileMode
	inode   uint64 // two replacements within one tick of the kernel's clock differ in nothing else
	// A file that could not be read may be readable when it has another owner.
	uid, gid uint32
}

// Stamps returns the stamps of files. An empty path counts as a file that is not there.
func Stamps(paths ...string) []Stamp {
	all := make([]Stamp, len(paths))
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		all[i] = Stamp{size: info.Size(), changed: info.ModTime().UnixNano(), mode: info.Mode()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			all[i].inode, all[i].uid, all[i].gid = st.Ino, st.Uid, st.Gid
		}
	}
	return all
}
