package tomlfile

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// colour is a value with a notation of its own.
type colour int

func (c *colour) UnmarshalText(text []byte) error {
	switch string(text) {
	case "red":
		*c = 1
	case "blue":
		*c = 2
	default:
		return fmt.Errorf("%q is not %s", text, c.Form())
	}
	return nil
}

func (colour) Form() string { return `a colour, "red" or "blue"` }

type common struct {
	Colour *colour `toml:"colour"`
}

// house has a key of each kind that dcol's formats use.
type house struct {
	common
	Name   string            `toml:"name"`
	Storey int               `toml:"storey"`
	Sold   *bool             `toml:"sold"`
	Tags   []string          `toml:"tags"`
	Ports  []int             `toml:"ports"`
	Nets   []netip.Prefix    `toml:"nets"`
	Home   netip.Addr        `toml:"home"`
	Door   netip.AddrPort    `toml:"door"`
	Paint  []colour          `toml:"paint"`
	Garden garden            `toml:"garden"`
	Rooms  []room            `toml:"room"`
	Notes  map[string]string `toml:"notes"`
	Any    map[string]any    `toml:"any"`
	Inside int               // has no key
}

type garden struct {
	Trees int `toml:"trees"`
}

type room struct {
	common
	Name    string `toml:"name"`
	Doors   []door `toml:"door"`
	Windows *int   `toml:"windows"`
}

type door struct {
	Wide bool `toml:"wide"`
}

func TestDecode(t *testing.T) {
	var h house
	p := Decode("h.toml", []byte(`
name = "seven"
storey = 0x10
sold = false
colour = "red"
tags = ["a", "b"]
ports = [1, 65535]
nets = ["192.0.2.0/24", "2001:db8::/32"]
home = "192.0.2.1"
paint = ["blue"]
garden.trees = 3
notes = { "a b" = "c" }
[any]
x = [1, "two", 3.0]
[[room]]
name = "kitchen"
windows = 2
[[room.door]]
wide = true
[[room.door]]
[[room]]
colour = "blue"
`), &h)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	red, blue, no, two := colour(1), colour(2), false, 2
	want := house{
		common: common{&red}, Name: "seven", Storey: 16, Sold: &no, Tags: []string{"a", "b"}, Ports: []int{1, 65535},
		Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
		Home: netip.MustParseAddr("192.0.2.1"), Paint: []colour{blue}, Garden: garden{3},
		Notes: map[string]string{"a b": "c"}, Any: map[string]any{"x": []any{int64(1), "two", 3.0}},
		Rooms: []room{{Name: "kitchen", Windows: &two, Doors: []door{{true}, {}}}, {common: common{&blue}}},
	}
	if d := cmp.Diff(want, h, cmp.AllowUnexported(house{}, room{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestProblems(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{"nme = 1", `h.toml:1: nme: unknown key; did you mean "name"?`},
		{"name = \"a\"\n\nstoery = 1", `h.toml:3: stoery: unknown key; did you mean "storey"?`},
		{"inside = 1", `h.toml:1: inside: unknown key; known here: any, colour, door, garden, home, name, nets, notes, paint, ports, room, sold, storey, tags`},
		{"[gardn]\ntrees = 1\nbees = 2", `h.toml:1: gardn: unknown key; did you mean "garden"?`},
		{"[garden]\ntress = 1", `h.toml:2: garden.tress: unknown key; did you mean "trees"?`},
		{"garden = { tress = 1 }", `h.toml:1: garden.tress: unknown key; did you mean "trees"?`},
		{"[[room]]\n[[room]]\nnam = \"b\"", `h.toml:3: room[1].nam: unknown key; did you mean "name"?`},
		{"[[room]]\n[[room.door]]\n[[room.door]]\nwdie = true", `h.toml:4: room[0].door[1].wdie: unknown key; did you mean "wide"?`},
		{"\"a.b\" = 1", `h.toml:1: "a.b": unknown key`},
		{"\"a\\nb\" = 1", `h.toml:1: "a\nb": unknown key`},

		{"name = 1", `h.toml:1: name: must be a string in quotes, not a whole number`},
		{"name = 1979-05-27", `h.toml:1: name: must be a string in quotes, not a date`},
		{"storey = \"1\"", `h.toml:1: storey: must be a whole number, not a string`},
		{"storey = 1.0", `h.toml:1: storey: must be a whole number, not a number with a fraction`},
		{"sold = \"yes\"", `h.toml:1: sold: must be true or false, not a string`},
		{"tags = \"a\"", `h.toml:1: tags: must be a list of strings, not a string`},
		{"tags = [\"a\", 1]", `h.toml:1: tags[1]: must be a string in quotes, not a whole number`},
		{"ports = 1", `h.toml:1: ports: must be a list of whole numbers, not a whole number`},
		{"nets = [24]", `h.toml:1: nets[0]: must be a string in quotes, not a whole number`},
		{"nets = [\"192.0.2.0\"]", `h.toml:1: nets[0]: "192.0.2.0" is not a network, such as "192.0.2.0/24" or "2001:db8::/32"`},
		{"nets = [\"192.0.2.0/33\"]", `h.toml:1: nets[0]: "192.0.2.0/33" is not a network`},
		{"home = \"192.0.2.256\"", `h.toml:1: home: "192.0.2.256" is not an IP address, such as "192.0.2.1" or "2001:db8::1"`},
		{"door = \"192.0.2.1\"", `h.toml:1: door: "192.0.2.1" is not an IP address with a port, such as "192.0.2.1:80" or "[2001:db8::1]:80"`},
		{"home = {}", `h.toml:1: home: must be a string in quotes, not a table`},
		{"[home]", `h.toml:1: home: must be a string in quotes, not a table`},
		{"colour = \"green\"", `h.toml:1: colour: "green" is not a colour, "red" or "blue"`},
		{"colour = true", `h.toml:1: colour: must be a colour, "red" or "blue", not true or false`},
		{"paint = \"red\"", `h.toml:1: paint: must be a list of strings, not a string`},
		{"garden = 1", `h.toml:1: garden: must be a table, not a whole number`},
		{"room = 1", `h.toml:1: room: must be a list of tables, not a whole number`},
		{"[room]", `h.toml:1: room: there may be several of these: write [[room]]`},
		{"[[garden]]", `h.toml:1: garden: there is only one of these: write [garden]`},
		{"[[name]]", `h.toml:1: name: must be a string in quotes, not a table`},
		{"home.page = 1", `h.toml:1: home.page: is not a table`},
		{"[name]\nfirst = \"a\"", `h.toml:1: name: must be a string in quotes, not a table`},
		{"[name.first]", `h.toml:1: name.first: is not a table`},
		{"name.first = 1", `h.toml:1: name.first: is not a table`},
		{"[notes]\na = 1", `h.toml:2: notes.a: must be a string in quotes, not a whole number`},

		{"name = ", `h.toml:1:`},
		{"name = \"a\"\nname = \"b\"", `h.toml:2:1: name: `},
		{"name = \"a", `h.toml:1:`},
		{"storey = 99999999999999999999", `h.toml:1:`},
		{"\xff", `h.toml:1:`},
	} {
		err := Decode("h.toml", []byte(test.file), new(house)).Err()
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q\n gave %v\n want %s", test.file, err, test.want)
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	p := Decode("h.toml", []byte("nme = 1\n[[room]]\nname = 2\nwindows = \"x\"\n"), new(house))
	want := `h.toml:1: nme: unknown key; did you mean "name"?
h.toml:3: room[0].name: must be a string in quotes, not a whole number
h.toml:4: room[0].windows: must be a whole number, not a string`
	if err := p.Err(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// Text that is not in a file has no lines that the user could look at.
func TestWithoutAFile(t *testing.T) {
	for text, want := range map[string]string{
		"nme = 1":    `nme: unknown key; did you mean "name"?`,
		"storey = x": "",
	} {
		err := Decode("", []byte(text), new(house)).Err()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), ":1") || strings.HasPrefix(err.Error(), ":") {
			t.Errorf("%q gave %v, want %s", text, err, want)
		}
	}
}

// What the caller finds is placed at the key, else at the table it lacks.
func TestAt(t *testing.T) {
	p := Decode("h.toml", []byte("name = \"x\"\n\n[[room]]\n[[room]]\nname = \"y\"\n[garden]\n"), new(house))
	for _, test := range []struct{ path, want string }{
		{"name", "h.toml:1: name: is 7"},
		{"room[1].name", "h.toml:5: room[1].name: is 7"},
		{"room[0].name", "h.toml:3: room[0].name: is 7"},
		{"room[1].door[0].wide", "h.toml:4: room[1].door[0].wide: is 7"},
		{"garden.trees", "h.toml:6: garden.trees: is 7"},
		{"storey", "h.toml: storey: is 7"},
	} {
		before := len(p.found)
		p.At(test.path, "is %d", 7)
		if got := p.found[before]; got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestKeys(t *testing.T) {
	want := []string{
		"any", "colour", "door", "garden", "garden.trees", "home", "name", "nets", "notes", "paint", "ports",
		"room", "room.colour", "room.door", "room.door.wide", "room.name", "room.windows", "sold", "storey", "tags",
	}
	if d := cmp.Diff(want, Keys(reflect.TypeFor[house]())); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"rate", "rate", 0}, {"rte", "rate", 1}, {"arte", "rate", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
	}
	word := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := editDistance(a, b)
		if d != editDistance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) || d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Errorf("%q to %q: %d", a, b, d)
		}
		if i := rapid.IntRange(0, len(a)).Draw(t, "i"); editDistance(a, a[:i]+"z"+a[i:]) != 1 {
			t.Errorf("a letter put into %q at %d costs %d", a, i, editDistance(a, a[:i]+"z"+a[i:]))
		}
	})
}

func TestNear(t *testing.T) {
	if got := Near("garden", []string{"gate", "gardens", "house", "garden", "gardener"}); !slices.Equal(got, []string{"garden", "gardens", "gardener"}) {
		t.Error(got)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"delay", "loss", "rate"}
	for word, want := range map[string]string{
		"dealy": `; did you mean "delay"?`,
		"rates": `; did you mean "rate"?`,
		"queue": "; known here: delay, loss, rate",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
		if word == "queue" {
			want = ""
		}
		if got := Suggestion(word, known); got != want {
			t.Errorf("%q: the suggestion is %q, want %q", word, got, want)
		}
	}
}
