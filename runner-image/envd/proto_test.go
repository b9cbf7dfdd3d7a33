package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"
)

func TestFramesSurviveTheWire(t *testing.T) {
	encoded := appendFrame(nil, frameData, 7, []byte{streamIn}, []byte("hello"))
	encoded = appendFrame(encoded, frameCancel, 8)
	stream := bytes.NewReader(encoded)

	first, err := readFrame(stream)
	if want := (frame{frameData, 7, []byte("\x00hello")}); err != nil || !reflect.DeepEqual(first, want) {
		t.Fatalf("first frame = %v, %v; want %v", first, err, want)
	}
	second, err := readFrame(stream)
	if want := (frame{frameCancel, 8, []byte{}}); err != nil || !reflect.DeepEqual(second, want) {
		t.Fatalf("second frame = %v, %v; want %v", second, err, want)
	}
	if _, err := readFrame(stream); err != io.EOF {
		t.Fatalf("after the last frame: %v; want EOF", err)
	}
}

func TestAFrameAboveItsLimitIsRefusedBeforeItIsRead(t *testing.T) {
	for kind, limit := range payloadLimits {
		header := appendFrame(nil, kind, 1)
		header[0], header[1], header[2], header[3] = byte((limit+1)>>24), byte((limit+1)>>16), byte((limit+1)>>8), byte(limit+1)
		if _, err := readFrame(bytes.NewReader(header)); !errors.Is(err, errViolation) {
			t.Errorf("type %d with %d bytes: %v; want a violation", kind, limit+1, err)
		}
	}
}

func TestAnUnknownFrameTypeIsAViolation(t *testing.T) {
	for _, kind := range []frameType{0, frameResult + 1, 255} {
		if _, err := readFrame(bytes.NewReader(appendFrame(nil, kind, 1))); !errors.Is(err, errViolation) {
			t.Errorf("type %d: %v; want a violation", kind, err)
		}
	}
}

func TestAFrameCutOffIsNotTheEndOfTheStream(t *testing.T) {
	whole := appendFrame(nil, frameData, 1, []byte("abc"))
	for length := 1; length < len(whole); length++ {
		if _, err := readFrame(bytes.NewReader(whole[:length])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v; want an unexpected EOF", length, len(whole), err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, frameRequest, 1, []byte(`{"op":"stat","path":"/"}`)))
	f.Add(appendFrame(nil, frameCredit, 2, []byte{1, 0, 0, 1, 0}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		stream := bytes.NewReader(input)
		for {
			before := stream.Len()
			got, err := readFrame(stream)
			if err != nil {
				return
			}
			if limit, known := payloadLimits[got.kind]; !known || len(got.payload) > int(limit) {
				t.Fatalf("accepted type %d with %d bytes", got.kind, len(got.payload))
			}
			again := appendFrame(nil, got.kind, got.id, got.payload)
			if consumed := input[len(input)-before : len(input)-stream.Len()]; !bytes.Equal(again, consumed) {
				t.Fatalf("frame %v encodes to %x, was %x", got, again, consumed)
			}
			if got.kind == frameCredit {
				if _, n, err := parseCredit(got.payload); err == nil && (n < 1 || n > windowBytes) {
					t.Fatalf("accepted credit for %d bytes", n)
				}
			}
		}
	})
}

func FuzzHandleFrames(f *testing.F) {
	f.Add(appendFrame(nil, frameRequest, 1, []byte(`{"op":"stat","path":"/"}`)))
	f.Add(appendFrame(appendFrame(nil, frameRequest, 1, []byte(`{"op":"nothing"}`)), frameData, 1, []byte("\x00abc")))
	f.Fuzz(func(t *testing.T, input []byte) {
		if bytes.Contains(input, []byte(`"op"`)) && !bytes.Contains(input, []byte("stat")) {
			return // the fuzzer must not invent an exec or a remove
		}
		s, c := testServer(t), newConn(roleVerifier, &recorder{input: bytes.NewReader(input)})
		if err := s.serve(c); err == nil {
			t.Fatal("the end of the input is an error too")
		}
	})
}

func TestCreditIsUsedUpAndComesBack(t *testing.T) {
	c := newCredit()
	if n, err := c.take(context.Background(), windowBytes*2); n != windowBytes || err != nil {
		t.Fatalf("first take = %d, %v; want the whole window", n, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if n, err := c.take(ctx, 1); n != 0 || err == nil {
		t.Fatalf("take without credit = %d, %v; want to wait in vain", n, err)
	}
	if err := c.give(5); err != nil {
		t.Fatal(err)
	}
	if n, err := c.take(context.Background(), 10); n != 5 || err != nil {
		t.Fatalf("take after give = %d, %v; want 5", n, err)
	}
}

func TestMoreCreditThanWasUsedIsAViolation(t *testing.T) {
	if err := newCredit().give(1); !errors.Is(err, errViolation) {
		t.Fatalf("give = %v; want a violation", err)
	}
}

func TestInboxGivesBytesInOrderThenItsEnd(t *testing.T) {
	b := newInbox(func(int) {})
	for _, piece := range []string{"ab", "", "cd"} {
		if err := b.push([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	b.finish(io.EOF)
	b.finish(errors.New("too late"))
	if got, err := io.ReadAll(b); string(got) != "abcd" || err != nil {
		t.Fatalf("read %q, %v; want abcd", got, err)
	}
}

func TestInboxHoldsOneWindowAndGrantsWhatWasRead(t *testing.T) {
	granted := 0
	b := newInbox(func(n int) { granted += n })
	if err := b.push(make([]byte, windowBytes)); err != nil {
		t.Fatal(err)
	}
	if err := b.push([]byte{1}); !errors.Is(err, errViolation) {
		t.Fatalf("push above the window = %v; want a violation", err)
	}
	if _, err := io.ReadFull(b, make([]byte, windowBytes/4)); err != nil {
		t.Fatal(err)
	}
	if granted != windowBytes/4 {
		t.Fatalf("granted %d; want %d", granted, windowBytes/4)
	}
	if err := b.push(make([]byte, windowBytes/4)); err != nil {
		t.Fatalf("push of what was granted: %v", err)
	}
}
