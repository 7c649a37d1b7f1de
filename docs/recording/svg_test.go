package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	var p pen
	spans := parse("a \x1b[1;32mgood\x1b[0m \x1b[7mcursor\x1b[27m\x1b[38;5;1mx\x1b[39m é", &p)
	want := []span{
		{0, "a ", pen{}}, {2, "good", pen{fg: colours[2], bold: true}}, {6, " ", pen{}}, {7, "cursor", pen{reverse: true}},
		{13, "x", pen{fg: colours[1]}}, {14, " é", pen{}},
	}
	if len(spans) != len(want) {
		t.Fatalf("got %+v", spans)
	}
	for i := range want {
		if spans[i] != want[i] {
			t.Errorf("%d: got %+v, want %+v", i, spans[i], want[i])
		}
	}
}

// A recording is well-formed, shows each distinct line once, escapes what terminals showed, and has no script.
func TestCompose(t *testing.T) {
	frames := []frame{
		{0, []string{"$ curl <x>", "same"}}, {time.Second, []string{"$ curl <x> & y", "same"}},
	}
	svg := compose([]screen{{"one", 20, 1}, {"two & more", 20, 1}}, frames, 1, `words "quoted"`)
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	if strings.Count(svg, ">same<") != 1 || strings.Count(svg, "<use ") != 4 || strings.Contains(svg, "<script") {
		t.Error(svg)
	}
	if !strings.Contains(svg, "@media (prefers-reduced-motion: reduce)") {
		t.Error("it moves for everybody")
	}
}
