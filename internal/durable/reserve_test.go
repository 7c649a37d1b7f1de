package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "reserve")
	r := NewReserve(path, 1<<20)
	for range 2 {
		if err := r.Keep(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 1<<20 {
			t.Fatalf("%v, %v", info, err)
		}
	}
	for range 2 {
		if err := r.Free(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Fatal("it is still set aside")
		}
	}
	room, err := Room(dir)
	if err != nil || room <= 0 {
		t.Fatalf("%d, %v", room, err)
	}
	if err := NewReserve(path, room).Keep(); err != nil {
		t.Errorf("too large a reserve: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("all the room there was is set aside")
	}
	if err := NewReserve(filepath.Join(dir, "missing", "reserve"), 1).Keep(); err == nil {
		t.Error("set aside in no directory")
	}
}
