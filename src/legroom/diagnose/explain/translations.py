"""Translates the messages of operating systems and shells to English.

Windows and Linux print some messages in the language of the user. PyTorch, Python and CUDA always print English.
"""

import re
from functools import cache

from legroom.diagnose.oom.known_messages import compile_variants

_KILLED = (
    "已杀死|已殺死|已砍掉|죽었음|強制終了|Getötet|Tué|Processus arrêté|Убито|Вбито|Terminado \\(killed\\)|Matado|Morto|Ucciso"
    "|Öldürüldü|Unicestwiony|Zabity"
)
_MESSAGES = {
    "The paging file is too small": (
        "页面文件太小|頁面檔太小|分頁檔太小|페이징 파일이 너무 작|ページング ?ファイルが小さすぎ|Auslagerungsdatei ist zu klein"
        "|fichier de pagination est insuffisant|archivo de paginación es demasiado pequeño"
        "|arquivo de paginação é (?:muito pequeno|pequeno demais)|Файл подкачки слишком мал|file di paging[^\n]{0,20} troppo piccolo"
        "|Disk belleği dosyası[^\n]{0,40} çok küçük|Plik stronicowania jest za mały"
    ),
    "Cannot allocate memory": (
        "无法分配内存|不能分配内存|無法配置記憶體|無法分配記憶體|메모리를 할당할 수 없|メモリを確保できません|メモリの割り当てができません"
        "|Nicht genügend Hauptspeicher verfügbar|Impossible d'allouer de la mémoire|Ne peut allouer de la mémoire"
        "|No se (?:pudo|puede) asignar memoria|Não (?:foi|é) possível alocar memória|(?:Не удалось|Невозможно) выделить память"
        "|Impossibile allocare (?:la )?memoria|Bellek ayrılamadı"
    ),
    "No space left on device": (
        "设备上没有空间|裝置上已無多餘空間|設備上沒有空間|장치에 남은 공간이 없|デバイスに空き領域がありません"
        "|(?:Auf dem Gerät ist kein|Kein) Speicherplatz mehr|Aucun espace disponible sur le périphérique|No queda espacio en el dispositivo"
        "|Não há espaço disponível no dispositivo|На устройстве (?:не осталось свободного места|кончилось место)"
        "|Spazio esaurito sul device|Aygıtta yer kalmadı"
    ),
    "Too many open files": (
        "打开的文件过多|開啟太多檔案|열린 파일이 너무 많|開いているファイルが多すぎ|Zu viele offene Dateien|Trop de fichiers ouverts"
        "|Demasiados (?:archivos|ficheros) abiertos|Слишком много открытых файлов|Troppi file aperti"
    ),
    "Segmentation fault": (
        "段错误|區段錯誤|記憶體區段錯誤|세그멘테이션 (?:오류|결함|폴트)|세그먼테이션 (?:오류|결함|폴트)|セグメンテーション(?:違反|フォルト)|Speicherzugriffsfehler"
        "|Erreur de segmentation|Violación de segmento|Falha de segmentação|Ошибка сегментирования|Errore di segmentazione"
        "|Parçalama arızası"
    ),
    "Bus error": "总线错误|匯流排錯誤|버스 오류|バスエラー|Bus-Zugriffsfehler|Erreur (?:de )?bus|Error del? bus|Ошибка шины",
}


@cache
def _translations() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Return a lower-case literal, a pattern and its replacement for each message."""
    killed = [
        (literal, re.compile(rf"(^|[\]|])[ \t]*{pattern.pattern}[ \t]*$", re.MULTILINE), r"\1Killed")
        for literal, pattern in compile_variants(_KILLED)
    ]
    others = [
        (literal, re.compile(rf"(?:{pattern.pattern})(?! \({english})"), rf"\g<0> ({english})")
        for english, messages in _MESSAGES.items()
        for literal, pattern in compile_variants(messages)
    ]
    return (*killed, *others)


@cache
def _literals() -> tuple[bytes, ...]:
    return tuple(literal.encode() for literal, _, _ in _translations())


def has_translations(lowered: bytes) -> bool:
    """Return True if a text in lower case may contain a system message in another language."""
    return any(literal in lowered for literal in _literals())


def translate_system_messages(text: str) -> str:
    """Add the English message after each system message in another language. Line breaks stay the same."""
    for _, pattern, replacement in _translations():
        text = pattern.sub(replacement, text)
    return text
