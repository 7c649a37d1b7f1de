package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// This file checks that the pages of a file are whole before the library reads them. The library maps the file into
// memory and follows the references between pages. Its own check does so in another goroutine, where guard cannot catch
// a fault: a missing page, or one that refers to itself, would end the agent.

// The layout of the library's file, in bytes, in this host's byte order.
const (
	headerSize  = 16 // of a page: its number, flags, number of elements, number of pages that continue it
	elementSize = 16
	metaSize    = 64
	leastPage   = 512
	mostPage    = 64 << 10
)

const (
	branchFlag = 1
	leafFlag   = 2
	bucketFlag = 1 // of an element
)

// header describes the newest state in a file.
type header struct {
	pageSize          uint32
	root, pages, txid uint64
	freelist          uint64
}

// noFreelist takes the place of the free list's page number if there is no such list.
const noFreelist = ^uint64(0)

// parseHeader reads the header in a page. ok reports whether it is whole.
func parseHeader(page []byte) (h header, ok bool) {
	if len(page) < headerSize+metaSize {
		return h, false
	}
	order, meta := binary.NativeEndian, page[headerSize:headerSize+metaSize]
	sum := fnv.New64a()
	sum.Write(meta[:56])
	h = header{order.Uint32(meta[8:]), order.Uint64(meta[16:]), order.Uint64(meta[40:]), order.Uint64(meta[48:]), order.Uint64(meta[32:])}
	return h, sum.Sum64() == order.Uint64(meta[56:]) && h.pageSize >= leastPage && h.pageSize <= mostPage
}

// pageReader reads the pages of a file.
type pageReader struct {
	file io.ReaderAt
	header
	seen map[uint64]bool
}

// checkPages returns an error that wraps errDamaged if pages of the file are not whole. The library must have opened
// the file.
func checkPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := pageReader{file: f, seen: make(map[uint64]bool)}
	for i := range int64(2) {
		page := make([]byte, headerSize+metaSize)
		if _, err := f.ReadAt(page, i*int64(os.Getpagesize())); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if h, ok := parseHeader(page); ok && h.txid >= r.txid {
			r.header = h
		}
	}
	if r.pageSize == 0 {
		return fmt.Errorf("%w: it has no header", errDamaged)
	}
	if r.freelist != noFreelist {
		if _, err := r.page(r.freelist); err != nil {
			return err
		}
	}
	return r.walk(r.root)
}

// page reads a page, with the pages that continue it.
func (r *pageReader) page(id uint64) ([]byte, error) {
	if id < 2 || id >= r.pages || r.seen[id] {
		return nil, fmt.Errorf("%w: page %d of %d is beyond the end, or has two places", errDamaged, id, r.pages)
	}
	size := uint64(r.pageSize)
	data := make([]byte, size)
	if err := r.read(data, id*size); err != nil {
		return nil, err
	}
	more := uint64(binary.NativeEndian.Uint32(data[12:]))
	if binary.NativeEndian.Uint64(data) != id || more >= r.pages-id {
		return nil, fmt.Errorf("%w: page %d has another number or length", errDamaged, id)
	}
	for i := range more + 1 {
		if r.seen[id+i] {
			return nil, fmt.Errorf("%w: page %d has two places", errDamaged, id+i)
		}
		r.seen[id+i] = true
	}
	if more == 0 {
		return data, nil
	}
	data = make([]byte, (more+1)*size)
	return data, r.read(data, id*size)
}

func (r *pageReader) read(into []byte, at uint64) error {
	_, err := r.file.ReadAt(into, int64(at))
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends before page %d of %d", errDamaged, at/uint64(r.pageSize), r.pages)
	}
	return err
}

// walk checks a page and all pages below it.
func (r *pageReader) walk(id uint64) error {
	data, err := r.page(id)
	if err != nil {
		return err
	}
	if err := r.elements(data); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements checks the elements of a page.
func (r *pageReader) elements(page []byte) error {
	order := binary.NativeEndian
	if len(page) < headerSize {
		return fmt.Errorf("%w: it is too short", errDamaged)
	}
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if headerSize+count*elementSize > len(page) || flags != branchFlag && flags != leafFlag || flags == branchFlag && count == 0 {
		return fmt.Errorf("%w: its flags are %x, and it has %d elements", errDamaged, flags, count)
	}
	for i := range count {
		from := page[headerSize+i*elementSize:]
		if flags == branchFlag {
			if uint64(order.Uint32(from))+uint64(order.Uint32(from[4:])) > uint64(len(from)) {
				return fmt.Errorf("%w: element %d is beyond its end", errDamaged, i)
			}
			if err := r.walk(order.Uint64(from[8:])); err != nil {
				return err
			}
			continue
		}
		kind, at, key, value := order.Uint32(from), uint64(order.Uint32(from[4:])), uint64(order.Uint32(from[8:])), uint64(order.Uint32(from[12:]))
		if at+key+value > uint64(len(from)) {
			return fmt.Errorf("%w: element %d is beyond its end", errDamaged, i)
		}
		if kind&bucketFlag == 0 {
			continue
		}
		if err := r.bucket(from[at+key : at+key+value]); err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket. It has a page of its own, or is in the value of an element.
func (r *pageReader) bucket(value []byte) error {
	const bucketHeader = 16
	if len(value) < bucketHeader {
		return fmt.Errorf("%w: a bucket is too short", errDamaged)
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return r.walk(root)
	}
	return r.elements(value[bucketHeader:])
}
